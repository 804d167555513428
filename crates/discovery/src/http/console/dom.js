// Elements, requests and texts. Values of the server are only ever set as text.
const SVG = 'http://www.w3.org/2000/svg';

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

export async function api(path) {
  const answer = await fetch(path, { headers: { accept: 'application/json' } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || `the server answered ${answer.status}`);
  return body;
}

export const quoted = text => (/^[\w@%+=:,./~-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);
export const path = text => encodeURIComponent(text);
export const time = text => (text ? new Date(text).toLocaleTimeString([], { hour12: false }) : '');
export const count = number => Number(number || 0).toLocaleString('en');
export const place = of => (of.file ? of.file + (of.line ? `:${of.line}` : '') : of.source || '');

export function ago(text) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(text)) / 1000));
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

const TONES = { synced: 'good', SYNCED: 'good', live: 'good', added: 'good', healthy: 'good', pending: 'warn', STALE: 'warn', stale: 'bad',
  syncing: 'warn', warning: 'warn', changed: 'warn', rejected: 'bad', ERROR: 'bad', error: 'bad', deleted: 'bad' };
export const badge = (text, tone) => h('span', { class: `badge ${tone ?? TONES[text] ?? ''}` }, text);
export const failed = error => h('div', { class: 'panel bad', role: 'alert' }, `Could not load this view: ${error.message}`);
export const empty = text => h('div', { class: 'empty' }, text);

// What a change did, in one line.
export function summary(entry) {
  const parts = [];
  if (entry.synced.length) parts.push(`${entry.synced.join(', ')} synced`);
  for (const of of entry.objects.slice(0, 3)) parts.push(`${of.kind} ${of.namespace}/${of.name} ${of.change}`);
  const more = entry.changedObjects - Math.min(3, entry.objects.length);
  if (more > 0) parts.push(`${count(more)} more objects`);
  if (entry.settings) parts.push('settings');
  if (!entry.objects.length && entry.services) parts.push(`${count(entry.services)} services`);
  if (!entry.objects.length && entry.endpoints) parts.push(`${count(entry.endpoints)} changes of endpoints (${entry.names.join(', ')})`);
  return parts.join('; ') || 'renewed';
}
