// The views, each a function of the address: it returns what to show, the command that prints the same, and how to
// refresh it after an event.
import { ago, api, badge, count, h, path, place, quoted, summary, time } from './dom.js';
import { list, plain } from './table.js';
import { plot } from './plots.js';
import { topology } from './topology.js';

const title = (text, ...more) => h('div', { class: 'row between' }, h('h1', {}, text), more);

function card(label, figure, note, tone, href) {
  return h('a', { class: 'panel card', href }, h('div', { class: 'label' }, label), h('div', { class: `figure ${tone || ''}` }, figure),
    h('div', { class: `note ${tone || 'muted'}` }, note));
}

function cards(status) {
  const behind = status.proxies - status.synced;
  return h('div', { class: 'cards' },
    card('Proxies', count(status.proxies), behind ? `${count(behind)} are behind` : 'all in sync', behind ? 'warn' : 'good', '/ui/proxies'),
    card('Rejections', count(status.rejected), status.rejected ? 'proxies rejected a response' : 'none', status.rejected ? 'bad' : 'good', '/ui/proxies?state=rejected'),
    card('Services', count(status.services), 'of all registries', '', '/ui/services'),
    card('Objects', count(status.objects), `snapshot ${status.snapshot}`, '', '/ui/history'),
    card('Problems', count(status.errors + status.warnings), `${status.errors} errors, ${status.warnings} warnings`,
      status.errors ? 'bad' : status.warnings ? 'warn' : 'good', '/ui/problems'),
    card('Sources', count(status.sources), status.staleSources ? `${status.staleSources} stale` : 'all live', status.staleSources ? 'bad' : 'good', '/ui/problems'));
}

function plots(stats, marks) {
  const line = (field, name) => ({ field, name, class: 'series' }), most = field => ({ field, class: 'most' });
  return h('div', { class: 'plots' },
    plot('Push latency', 'ms', stats, [line('pushMean'), most('pushMax')], marks),
    plot('Convergence', 'ms', stats, [line('convergedMean'), most('convergedMax')], marks),
    plot('CPU', '%', stats, [line('cpu')], marks),
    plot('Memory', 'MB', stats, [line('memory')], marks, 1048576));
}

function changes(entries) {
  return plain([
    { title: 'Time', width: '76px', cell: entry => h('span', { title: entry.at }, time(entry.at)) },
    { title: 'Change', width: '1fr', cell: entry => h('a', { href: `/ui/history?snapshot=${entry.last}` }, summary(entry)) },
    { title: 'Proxies', width: '80px', cell: entry => (entry.acknowledged ? `${count(entry.acknowledged)}, ${entry.convergedMillis} ms` : '') },
  ], entries);
}

async function overview() {
  const [status, graph, stats, history] = await Promise.all(['status', 'topology', 'stats', 'history?limit=60'].map(of => api(`/api/v1/${of}`)));
  const marks = history.entries.filter(entry => entry.changedObjects);
  return {
    command: 'pilotctl check',
    on: ['change', 'sync', 'problems', 'source', 'stats'],
    content: [title('Overview'), cards(status), plots(stats, marks),
      h('div', { class: 'split' },
        h('section', { class: 'panel' }, h('h2', {}, 'Routes: who calls, host, destination with weight and health'), topology(graph)),
        h('section', {}, h('h2', {}, 'Last changes'), changes(history.entries.slice(0, 8))))],
  };
}

// A list with a filter in the address.
function filtered(query, { name, options, load, columns, open, key, label, text }) {
  const lines = list(columns, { open, key, label });
  const total = h('span', { class: 'muted', id: 'total' });
  const search = h('input', { type: 'search', id: 'filter', placeholder: 'Filter by name', 'aria-label': 'Filter by name', value: query.get(name) || '' });
  const selects = options.map(option => h('select', { 'aria-label': option.label, name: option.name },
    h('option', { value: '' }, option.all), option.values.map(value => h('option', { value, selected: query.get(option.name) === value }, value))));
  const wanted = () => [[name, search.value], ...selects.map(select => [select.name, select.value])].filter(([, value]) => value);
  let all = [];
  const show = () => {
    const part = search.value.toLowerCase(), chosen = selects.map(select => [select.name, select.value]);
    const found = all.filter(item => text(item).toLowerCase().includes(part) && chosen.every(([field, value]) => !value || item[field] === value));
    lines.set(found);
    total.textContent = found.length === all.length ? `${count(all.length)} in all` : `${count(found.length)} of ${count(all.length)}`;
    const query = new URLSearchParams(wanted()).toString();
    history.replaceState(null, '', location.pathname + (query ? `?${query}` : ''));
  };
  search.addEventListener('input', show);
  selects.forEach(select => select.addEventListener('change', show));
  return { element: [h('div', { class: 'filters' }, search, selects, total), lines.element], async refresh() { all = await load(); show(); } };
}

async function proxies(query) {
  const view = filtered(query, {
    name: 'name', label: 'Proxies', text: of => of.proxy, key: of => of.proxy, open: of => `/ui/proxies/${path(of.proxy)}`,
    options: [{ name: 'state', label: 'State', all: 'Any state', values: ['synced', 'pending', 'rejected'] }],
    load: async () => (await api('/api/v1/proxies')).proxies,
    columns: [
      { title: 'Proxy', width: 'minmax(0,3fr)', cell: of => of.proxy },
      { title: 'Type', width: '80px', cell: of => of.type },
      { title: 'State', width: '100px', cell: of => badge(of.state) },
      { title: 'Snapshot', width: '90px', cell: of => of.holds },
      ...['CDS', 'LDS', 'EDS', 'RDS'].map(kind => ({ title: kind, width: '90px', cell: of => (of.types[kind] ? badge(of.types[kind]) : h('span', { class: 'muted' }, 'NOT SENT')) })),
      { title: 'Version', width: '90px', cell: of => of.version },
      { title: 'Connected', width: '110px', cell: of => ago(of.connectedAt) },
    ],
  });
  await view.refresh();
  return { command: 'pilotctl ps', on: ['sync', 'connected', 'disconnected', 'more', 'rejection'], content: [title('Proxies'), view.element], refresh: view.refresh };
}

async function services(query) {
  const first = await api('/api/v1/services');
  const view = filtered(query, {
    name: 'name', label: 'Services', text: of => of.host, key: of => `${of.namespace}/${of.host}`,
    options: [{ name: 'registry', label: 'Registry', all: 'Any registry', values: Object.keys(first.registries) }],
    load: async () => (await api('/api/v1/services')).services,
    columns: [
      { title: 'Host', width: 'minmax(0,3fr)', cell: of => of.host },
      { title: 'Namespace', width: 'minmax(0,1fr)', cell: of => of.namespace },
      { title: 'Registry', width: '120px', cell: of => of.registry },
      { title: 'Ports', width: 'minmax(0,2fr)', cell: of => of.ports.map(port => `${port.number} ${port.protocol}`).join(', ') },
      { title: 'Address', width: '130px', cell: of => of.address },
      { title: 'Healthy', width: '110px', cell: of => badge(`${of.healthy}/${of.endpoints}`, of.healthy === 0 ? 'bad' : of.healthy < of.endpoints ? 'warn' : 'good') },
    ],
  });
  await view.refresh();
  const counts = Object.entries(first.registries).map(([name, number]) => `${name} ${count(number)}`).join(', ');
  return { command: 'pilotctl get services', on: ['change'], content: [title('Services', h('span', { class: 'muted' }, counts)), view.element], refresh: view.refresh };
}

async function problems() {
  const [found, sources] = await Promise.all([api('/api/v1/problems'), api('/api/v1/sources')]);
  const rank = { error: 0, warning: 1, info: 2 };
  found.sort((one, other) => rank[one.severity] - rank[other.severity]);
  return {
    command: 'pilotctl check --all', on: ['problems', 'source', 'change'],
    content: [title('Problems', h('span', { class: 'muted' }, `${found.length} in all`)),
      plain([
        { title: 'Severity', width: '90px', cell: of => badge(of.severity) },
        { title: 'Code', width: '96px', cell: of => h('code', {}, of.code) },
        { title: 'Object', width: 'minmax(0,1.2fr)', cell: of => of.about },
        { title: 'Message', width: 'minmax(0,3fr)', cell: of => of.message },
        { title: 'File', width: 'minmax(0,1.2fr)', cell: of => h('span', { class: 'mono' }, place(of)) },
      ], found.slice(0, 500)),
      h('h1', {}, 'Sources'),
      plain([
        { title: 'Source', width: 'minmax(0,2fr)', cell: of => of.source },
        { title: 'State', width: '100px', cell: of => badge(of.state) },
        { title: 'Reason', width: 'minmax(0,3fr)', cell: of => of.reason || '' },
        { title: 'Services', width: '90px', cell: of => count(of.services) },
        { title: 'Changes', width: '90px', cell: of => count(of.changes) },
        { title: 'Restarts', width: '90px', cell: of => count(of.restarts) },
      ], sources)],
  };
}

function difference(before, after) {
  const [old, next] = [before, after].map(of => (of ? JSON.stringify(of, null, 2).split('\n') : []));
  const kept = new Set(old.filter(line => next.includes(line)));
  const lines = [...old.filter(line => !kept.has(line)).map(line => h('div', { class: 'del' }, `- ${line}`)),
    ...next.map(line => h('div', { class: kept.has(line) ? '' : 'add' }, `${kept.has(line) ? ' ' : '+'} ${line}`))];
  return h('pre', { tabindex: '0' }, lines);
}

async function history_(query) {
  const found = await api('/api/v1/history?limit=200&proxies');
  const chosen = found.entries.find(entry => String(entry.last) === query.get('snapshot'));
  let detail = null;
  if (chosen) {
    const diff = await api(`/api/v1/history/diff?from=${chosen.snapshot - 1}&to=${chosen.last}`).catch(error => ({ objects: [], error }));
    detail = h('section', { class: 'panel' }, h('h2', {}, `Snapshot ${chosen.last}: ${summary(chosen)}`),
      diff.error ? h('p', { class: 'muted' }, diff.error.message) : null,
      diff.objects.map(of => [h('p', {}, `${of.kind} ${of.namespace}/${of.name}`), difference(of.before, of.after)]),
      chosen.proxies?.length ? h('details', {}, h('summary', {}, `${count(chosen.proxies.length)} proxies acknowledged it`),
        h('div', {}, chosen.proxies.slice(0, 500).map(by => h('div', { class: 'mono' }, `${by.proxy} after ${by.millis} ms`)))) : null);
  }
  const entries = plain([
    { title: 'Snapshot', width: '90px', cell: entry => h('a', { href: `/ui/history?snapshot=${entry.last}` }, entry.last) },
    { title: 'Time', width: '90px', cell: entry => h('span', { title: entry.at }, time(entry.at)) },
    { title: 'Change', width: 'minmax(0,3fr)', cell: entry => summary(entry) },
    { title: 'From', width: 'minmax(0,2fr)', cell: entry => h('span', { class: 'mono' }, entry.objects.slice(0, 3).map(place).join(', ') || entry.sources.join(', ')) },
    { title: 'Acknowledged', width: '130px', cell: entry => (entry.acknowledged ? `${count(entry.acknowledged)} in ${entry.convergedMillis} ms` : '') },
  ], found.entries);
  return {
    command: chosen ? `pilotctl diff ${chosen.snapshot - 1} ${chosen.last}` : 'pilotctl history', on: ['change', 'sync'],
    content: [title('History', h('span', { class: 'muted' }, `earlier versions are known from snapshot ${found.completeSince} on`)), detail, entries],
  };
}

function steps(found) {
  const lost = of => (of?.passedOver || []).map(other => h('div', { class: 'lost' }, `not ${other.what}: ${other.reason}`));
  const places = found.places || {};
  // The place of an object, and the line of its rule, which is known as "FIELD from OBJECT".
  const from = (config, field) => {
    if (!config) return null;
    const line = field && places[`${field} from ${config}`]?.split(':').pop();
    const text = places[config] ? `${places[config]}${line ? `, rule in line ${line}` : ''}` : '';
    return h('div', {}, field && field !== 'route' ? `${field} from ` : '', h('code', {}, config), ' ', text ? h('span', { class: 'mono' }, text) : '');
  };
  const step = (name, text, ...more) => h('li', {}, h('strong', {}, name), ' ', text, more);
  const outcome = found.outcome, bad = 'notServed' in outcome;
  const end = outcome.forwarded ? outcome.forwarded.map(cluster => h('li', { class: cluster.problem ? 'end bad' : 'end' },
    h('strong', {}, `${cluster.percent} % to cluster `), h('code', {}, cluster.name), ` (${cluster.discovery}${cluster.tls ? ', TLS' : ''})`, from(cluster.config),
    cluster.endpoints.map(endpoint => h('div', { class: 'mono' }, `${endpoint.address}, weight ${endpoint.weight}, ${endpoint.health}`)),
    cluster.problem ? h('div', { class: 'bad' }, cluster.problem) : null))
    : [h('li', { class: bad ? 'end bad' : 'end' }, h('strong', {}, bad ? `not served: ${outcome.notServed}`
      : outcome.redirected ? `redirect ${outcome.redirected.status} to ${outcome.redirected.location}` : `answered with status ${outcome.answered?.status}`))];
  return h('ol', { class: 'steps', id: 'steps' },
    found.listener && step('Listener', found.listener.name, h('div', { class: 'muted' }, found.listener.reason), lost(found.listener)),
    found.virtualHost && step('Virtual host', found.virtualHost.name, h('div', { class: 'muted' }, `domain ${found.virtualHost.domain} matches ${found.virtualHost.authority}`), lost(found.virtualHost)),
    found.route && step(`Route ${found.route.number}`, found.route.name, from(found.route.config, 'route'), lost(found.route)),
    (found.unmatched || []).map(other => h('li', {}, h('span', { class: 'lost' }, `not ${other.what}: ${other.reason}`))),
    (found.policies || []).map(policy => step(policy.what, policy.detail)), end,
    found.unknownHost && h('li', { class: 'end bad', id: 'unknown' }, found.unknownHost),
    (found.arrivals || []).map(arrival => arrived(arrival, from)));
}

// What the proxy of an endpoint does with the request.
function arrived(arrival, from) {
  const { access } = arrival, denied = access.denied, unknown = access.unknown;
  const by = arrival.identity ? `with mutual TLS as ${arrival.identity}` : arrival.mutualTls ? 'with mutual TLS' : 'without a certificate';
  return h('li', { class: denied ? 'end bad arrival' : 'end arrival' }, h('strong', {}, `At ${arrival.proxy} `), `(${arrival.address}) ${by}`,
    (arrival.peerAuthentications || []).map(config => h('div', {}, 'PeerAuthentication', from(config))),
    arrival.checks.map(check => h('div', {}, check.what, (check.rules || []).map(rule => from(rule.config, rule.field)))),
    h('div', { class: denied ? 'bad' : '' }, denied ? `denied: ${denied}` : unknown ? `not decided here: ${unknown}` : 'allowed'));
}

async function explain(query) {
  const known = (await api('/api/v1/proxies?limit=2000')).proxies;
  const field = (name, label, more) => h('label', {}, label, h('input', { name, value: query.get(name) || '', ...more }));
  const result = h('section', { class: 'panel' });
  const form = h('form', { class: 'filters', onsubmit: event => {
    event.preventDefault();
    const given = [...new FormData(form)].filter(([, value]) => value);
    window.dispatchEvent(new CustomEvent('open', { detail: `/ui/explain?${new URLSearchParams(given)}` }));
  } }, field('proxy', 'Proxy', { list: 'known', required: true, size: 26, id: 'filter' }), h('datalist', { id: 'known' }, known.map(of => h('option', { value: of.proxy }))),
    h('label', {}, 'Method', h('select', { name: 'method' }, ['GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'HEAD'].map(method => h('option', { selected: query.get('method') === method }, method)))),
    field('url', 'URL', { required: true, size: 40, placeholder: 'http://cart.example.com/items' }),
    field('header', 'Header', { size: 24, placeholder: 'x-user: ann' }), h('button', { class: 'primary' }, 'Explain'));
  let command = 'pilotctl explain --from PROXY GET URL';
  if (query.get('proxy') && query.get('url')) {
    const header = query.get('header') ? ` -H ${quoted(query.get('header'))}` : '';
    command = `pilotctl explain --from ${quoted(query.get('proxy'))} ${query.get('method') || 'GET'} ${quoted(query.get('url'))}${header}`;
    const found = await api(`/api/v1/explain?${query}`).catch(error => ({ error }));
    result.append(found.error ? h('p', { class: 'bad', role: 'alert' }, found.error.message) : steps(found));
  } else {
    result.append(h('p', { class: 'muted' }, 'Choose a proxy and a URL: each step shows what was chosen, where it was configured, and why the others lost.'));
  }
  return { command, on: [], content: [title('Explain'), form, result] };
}

export const VIEWS = [
  { name: 'Overview', at: '/ui', make: overview },
  { name: 'Proxies', at: '/ui/proxies', make: proxies },
  { name: 'Services', at: '/ui/services', make: services },
  { name: 'Problems', at: '/ui/problems', make: problems },
  { name: 'History', at: '/ui/history', make: history_ },
  { name: 'Explain', at: '/ui/explain', make: explain },
];
