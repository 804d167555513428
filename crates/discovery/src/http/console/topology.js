// Hosts and where their routes lead: weights, faults, mirrors, health.
import { h, s, empty } from './dom.js';

const ROW = 40, BOX = 28, COLUMNS = [0, 150, 480], WIDTHS = [120, 220, 320], MOST = 60;

const clipped = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
const tone = node => (!node || !node.endpoints || !node.healthy ? 'bad' : node.healthy < node.endpoints ? 'warn' : 'good');

export function topology(graph) {
  const health = new Map(graph.nodes.map(node => [node.host, node]));
  const edges = graph.edges.slice(0, MOST);
  if (!edges.length) return empty(`No routes are configured; ${graph.nodes.length} services are reached directly.`);
  const columns = [new Map(), new Map(), new Map()];
  const links = new Map();
  const add = (column, id, label) => columns[column].has(id) || columns[column].set(id, { label, row: columns[column].size });
  for (const edge of edges) {
    const target = edge.subset ? `${edge.to} / ${edge.subset}` : edge.to;
    add(0, edge.from, edge.from);
    add(1, `${edge.from} ${edge.host}`, edge.host);
    add(2, target, target);
    links.set(`${edge.from} ${edge.host}`, { from: edge.from });
  }
  const height = Math.max(...columns.map(column => column.size)) * ROW + 8;
  const y = (column, id) => {
    const of = columns[column];
    return 4 + (height - 8 - of.size * ROW) / 2 + of.get(id).row * ROW + ROW / 2;
  };
  const curve = (x1, y1, x2, y2) => `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  const drawn = [];
  for (const [id, link] of links) {
    drawn.push(s('path', { class: 'edge', 'stroke-width': 1.5, d: curve(COLUMNS[0] + WIDTHS[0], y(0, link.from), COLUMNS[1], y(1, id)) }));
  }
  const seen = new Map();
  for (const edge of edges) {
    const target = edge.subset ? `${edge.to} / ${edge.subset}` : edge.to, source = `${edge.from} ${edge.host}`;
    const [y1, y2] = [y(1, source), y(2, target)], share = edge.mirror ? 'mirror' : `${edge.weight} %`;
    const class_ = `edge${edge.mirror ? ' mirror' : ''}${edge.fault ? ' fault' : ''}`;
    drawn.push(s('path', { class: class_, 'stroke-width': 1 + edge.weight / 20, d: curve(COLUMNS[1] + WIDTHS[1], y1, COLUMNS[2], y2) },
      s('title', {}, `${edge.host}, ${edge.route}: ${share} to ${target}${edge.fault ? `, ${edge.fault}` : ''} (${edge.object})`)));
    const place = `${Math.round(y2)}`, shift = seen.get(place) || 0;
    seen.set(place, shift + 1);
    if (shift < 2) {
      drawn.push(s('text', { class: edge.fault ? 'flaw' : 'share', x: COLUMNS[2] - 8, y: y2 - 5 + shift * 17, 'text-anchor': 'end' },
        edge.fault ? `${share}, ${edge.fault}` : share));
    }
  }
  const box = (column, id, of) => {
    const host = column === 2 ? id.split(' / ')[0] : null, node = host ? health.get(host) : null;
    const note = column === 2 ? (node ? `${node.healthy}/${node.endpoints}` : 'unknown') : '';
    const top = y(column, id) - BOX / 2, x = COLUMNS[column];
    const shown = [
      s('rect', { class: `node ${column === 2 ? tone(node) : ''}`, x: x + 1, y: top, width: WIDTHS[column] - 2, height: BOX, rx: 7 }),
      s('text', { x: x + 11, y: top + 18 }, clipped(of.label, column === 2 ? 36 : column === 1 ? 28 : 15)),
      note && s('text', { class: 'dim', x: x + WIDTHS[column] - 11, y: top + 18, 'text-anchor': 'end' }, note),
      s('title', {}, note ? `${of.label}: ${note} endpoints healthy` : of.label),
    ];
    return host ? s('a', { href: `/ui/services?name=${encodeURIComponent(host)}` }, shown) : s('g', {}, shown);
  };
  const boxes = columns.flatMap((column, at) => [...column].map(([id, of]) => box(at, id, of)));
  const width = COLUMNS[2] + WIDTHS[2] + 2;
  const rest = graph.edges.length - edges.length;
  return h('div', { class: 'topology' },
    s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `Routes of ${columns[1].size} hosts` }, drawn, boxes),
    rest > 0 || graph.truncated ? h('p', { class: 'muted' }, `${rest} more routes are not drawn.`) : null);
}
