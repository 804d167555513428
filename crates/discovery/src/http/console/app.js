// The console: addresses, keys, live updates. It only reads.
import { api, count, failed, h } from './dom.js';
import { VIEWS } from './views.js';
import { proxyView } from './proxy.js';

const main = document.getElementById('main'), nav = document.getElementById('nav'), command = document.getElementById('command');
let shown = null, turn = 0, pending = null;

function maker() {
  const query = new URLSearchParams(location.search), proxy = location.pathname.match(/^\/ui\/proxies\/(.+)$/);
  if (proxy) return () => proxyView(decodeURIComponent(proxy[1]), query);
  const view = VIEWS.find(view => view.at === location.pathname.replace(/(.)\/$/, '$1'));
  return view ? () => view.make(query) : async () => ({ command: 'pilotctl --help', on: [], content: [h('div', { class: 'panel' }, 'There is no such view.')] });
}

function navigation() {
  nav.replaceChildren(...VIEWS.map((view, at) => h('a', { href: view.at, title: `Key ${at + 1}`,
    'aria-current': (view.at === '/ui' ? location.pathname === '/ui' : location.pathname.startsWith(view.at)) ? 'page' : null }, view.name)));
}

async function render(isRefresh) {
  const mine = ++turn;
  try {
    if (isRefresh && shown?.refresh) return void await shown.refresh();
    const made = await maker()();
    if (mine !== turn) return;
    const focus = document.activeElement?.id, top = main.scrollTop;
    const open = new Set([...main.querySelectorAll('details[open] > summary')].map(of => of.textContent));
    shown = made;
    command.textContent = made.command;
    main.replaceChildren(...made.content.flat(Infinity).filter(Boolean));
    if (isRefresh) {
      main.scrollTop = top;
      main.querySelectorAll('details > summary').forEach(of => { if (open.has(of.textContent)) of.parentElement.open = true; });
      if (focus) document.getElementById(focus)?.focus();
    }
    document.title = `${main.querySelector('h1')?.textContent || 'Pilotage'} – Pilotage`;
  } catch (error) {
    if (mine === turn) { shown = null; main.replaceChildren(failed(error)); }
  } finally {
    if (!performance.getEntriesByName('shown').length) performance.mark('shown');
    document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
  }
}

function go(address, replace) {
  history[replace ? 'replaceState' : 'pushState'](null, '', address);
  navigation();
  main.scrollTop = 0;
  return render(false).then(() => { if (document.activeElement === document.body) main.focus(); });
}

document.addEventListener('click', event => {
  const link = event.target.closest('a[href]');
  const address = link?.getAttribute('href');
  if (!address?.startsWith('/ui') || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(address);
});
window.addEventListener('popstate', () => { navigation(); render(false); });
window.addEventListener('open', event => go(event.detail));

document.addEventListener('keydown', event => {
  if (event.target.matches('input, select, textarea') || event.metaKey || event.ctrlKey || event.altKey) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) go(view.at);
  if (event.key === '/') { event.preventDefault(); document.getElementById('filter')?.focus(); }
});

document.getElementById('copy').addEventListener('click', async event => {
  await navigator.clipboard?.writeText(command.textContent).catch(() => {});
  event.target.textContent = 'Copied';
  setTimeout(() => { event.target.textContent = 'Copy'; }, 1200);
});

const stored = key => { try { return localStorage.getItem(key); } catch { return null; } };
const dark = matchMedia('(prefers-color-scheme: dark)');
const theme = () => { document.documentElement.dataset.theme = stored('theme') || (dark.matches ? 'dark' : 'light'); };
dark.addEventListener('change', theme);
document.getElementById('theme').addEventListener('click', () => {
  try { localStorage.setItem('theme', document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); } catch { /* not stored */ }
  theme();
});
theme();

// Events only say that something changed; the view then asks again, at most a few times a second.
function live() {
  const state = document.getElementById('live'), events = new EventSource('/api/v1/events');
  const tell = async () => {
    const status = await api('/api/v1/status').catch(() => null);
    if (status) state.textContent = `snapshot ${status.snapshot} · ${count(status.synced)}/${count(status.proxies)} proxies in sync`;
  };
  const soon = kind => {
    if (pending || !(shown === null || shown.on.includes(kind))) return;
    pending = setTimeout(() => { pending = null; if (!document.activeElement?.matches('input, select')) render(true); }, 250);
  };
  for (const kind of ['change', 'sync', 'push', 'rejection', 'source', 'problems', 'connected', 'disconnected', 'more', 'stats']) {
    events.addEventListener(kind, () => { if (kind === 'sync') tell(); soon(kind); });
  }
  events.addEventListener('open', tell);
  events.addEventListener('error', () => { if (events.readyState !== EventSource.OPEN) state.textContent = 'not connected'; });
  tell();
}

navigation();
render(false);
live();
