// One proxy: its state, what it should have, what it has acknowledged, what is missing, and its history.
import { ago, api, badge, count, h, path, quoted, summary, time } from './dom.js';
import { plain } from './table.js';

const TABS = { '': 'Status', intended: 'Intended', actual: 'Actual', diff: 'Difference', history: 'History' };

function status(proxy) {
  const metadata = Object.entries({ ...proxy.labels, ...proxy.metadata });
  const pair = (name, value) => [h('dt', {}, name), h('dd', {}, value || '–')];
  return [
    h('section', { class: 'panel' }, h('dl', {}, pair('Type', proxy.type), pair('Address', proxy.address), pair('Connected', `${proxy.connectedAt} (${ago(proxy.connectedAt)})`),
      pair('Version', `${proxy.version} ${proxy.envoy ? `Envoy ${proxy.envoy}` : ''}`), pair('Services', proxy.services.join(', ')), pair('Has snapshot', String(proxy.holds)))),
    types(proxy),
    h('details', { class: 'panel' }, h('summary', {}, `Labels and metadata (${metadata.length})`), h('dl', {}, metadata.map(([name, value]) => pair(name, value)))),
  ];
}

function types(proxy) {
  return plain([
    { title: 'Type', width: '80px', cell: of => of.type },
    { title: 'Status', width: '110px', cell: of => badge(of.status) },
    { title: 'Resources', width: '90px', cell: of => count(of.resources) },
    { title: 'Sent', width: '90px', cell: of => time(of.sentAt) },
    { title: 'Sent version', width: 'minmax(0,1fr)', cell: of => h('code', {}, of.sent || '–') },
    { title: 'Acknowledged version', width: 'minmax(0,1fr)', cell: of => h('code', {}, of.acknowledged || '–') },
    { title: 'Responses', width: '90px', cell: of => count(of.pushes) },
    { title: 'Bytes', width: '110px', cell: of => count(of.bytes) },
  ], proxy.details);
}

const NAMES = { listener: 'Listeners', cluster: 'Clusters', routeConfig: 'Route tables', endpointConfig: 'Load assignments', secret: 'Secrets' };

// Every resource of a dump, by the field that holds it.
function resources(value, found = new Map()) {
  if (Array.isArray(value)) value.forEach(item => resources(item, found));
  else if (value && typeof value === 'object') {
    for (const [field, inner] of Object.entries(value)) {
      if (inner && inner['@type'] && NAMES[field]) found.set(field, [...(found.get(field) || []), inner]);
      else resources(inner, found);
    }
  }
  return found;
}

function intended(dump) {
  const found = resources(dump);
  return [...found].map(([field, list]) => h('section', { class: 'panel' }, h('h2', {}, `${NAMES[field]} (${count(list.length)})`),
    list.slice(0, 500).map(resource => {
      const text = h('pre', { tabindex: '0' });
      const of = h('details', { ontoggle: () => { if (of.open && !text.textContent) text.textContent = JSON.stringify(resource, null, 2); } },
        h('summary', { class: 'mono' }, resource.name || resource.clusterName || '(without a name)'), text);
      return of;
    }), list.length > 500 ? h('p', { class: 'muted' }, `and ${count(list.length - 500)} more`) : null));
}

function actual(proxy) {
  const admin = `pilotctl pc all ${quoted(proxy.proxy)} --actual --admin HOST:PORT`;
  return [h('section', { class: 'panel' }, h('p', {}, proxy.state === 'synced'
    ? `The proxy has acknowledged everything of snapshot ${proxy.holds}: it has what it should have.`
    : `The proxy has everything of snapshot ${proxy.holds}, and has still to answer what was sent since.`),
    h('p', { class: 'muted' }, 'The server knows versions that a proxy acknowledges. The content of its Envoy is read by ', h('code', {}, admin), '.')), types(proxy)];
}

function difference(proxy) {
  const open = proxy.details.filter(of => of.status !== 'SYNCED');
  const shown = open.map(of => h('section', { class: 'panel' }, h('h2', {}, of.type, ' ', badge(of.status)),
    of.rejection ? h('p', { class: 'bad' }, `rejected at ${time(of.rejection.at)}: ${of.rejection.message}`)
      : h('p', {}, of.sent ? `version ${of.sent} was sent at ${time(of.sentAt)}; acknowledged is ${of.acknowledged || 'none'}` : 'nothing was sent yet')));
  const pinned = proxy.pinned.map(of => h('section', { class: 'panel' }, h('h2', {}, of.object, ' ', badge('earlier version', 'bad')), h('p', {}, of.message)));
  return shown.length + pinned.length ? [shown, pinned] : h('section', { class: 'panel' }, 'There is no difference: everything that was sent is acknowledged.');
}

async function past(proxy) {
  const found = await api(`/api/v1/history?limit=200&proxies&proxy=${path(proxy.proxy)}`);
  const own = entry => entry.proxies?.find(by => by.proxy === proxy.proxy)?.millis;
  return plain([
    { title: 'Snapshot', width: '90px', cell: entry => h('a', { href: `/ui/history?snapshot=${entry.last}` }, entry.last) },
    { title: 'Time', width: '90px', cell: entry => time(entry.at) },
    { title: 'Change', width: '1fr', cell: entry => summary(entry) },
    { title: 'Acknowledged after', width: '150px', cell: entry => `${own(entry) ?? '?'} ms` },
  ], found.entries);
}

export async function proxyView(name, query) {
  const proxy = await api(`/api/v1/proxies/${path(name)}`), tab = query.get('tab') || '';
  const body = tab === 'intended' ? intended(await api(`/api/v1/proxies/${path(name)}/config`)) : tab === 'actual' ? actual(proxy)
    : tab === 'diff' ? difference(proxy) : tab === 'history' ? await past(proxy) : status(proxy);
  const commands = { intended: `pilotctl pc all ${quoted(name)}`, actual: `pilotctl pc all ${quoted(name)} --actual --admin HOST:PORT`,
    diff: `pilotctl pc all ${quoted(name)} --diff --admin HOST:PORT`, history: `pilotctl history --proxy ${quoted(name)}` };
  return {
    command: commands[tab] || `pilotctl describe ${quoted(name)}`,
    on: tab === 'intended' ? [] : ['sync', 'rejection', 'push'],
    content: [
      h('div', { class: 'row between' }, h('h1', {}, name, ' ', badge(proxy.state)), h('a', { href: `/ui/explain?proxy=${path(name)}` }, 'Explain a request')),
      h('div', { class: 'tabs' }, Object.entries(TABS).map(([id, text]) =>
        h('a', { href: `/ui/proxies/${path(name)}${id ? `?tab=${id}` : ''}`, 'aria-current': id === tab ? 'page' : null }, text))),
      body],
  };
}
