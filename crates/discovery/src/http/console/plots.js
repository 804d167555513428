// Small plots of the last hour: lines over time, changes as vertical marks on the same axis.
import { h, s, summary, time } from './dom.js';

const WIDTH = 280, HEIGHT = 120, LEFT = 38, RIGHT = 6, TOP = 8, BOTTOM = 20;

function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map(step => step * power).find(step => step >= value);
}

// samples: [{at, ...}], lines: [{field, class, name}], marks: entries of the history.
export function plot(title, unit, samples, lines, marks, scale = 1) {
  const end = samples.length ? samples[samples.length - 1].at : Date.now();
  const begin = Math.min(samples.length ? samples[0].at : end, end - 300000);
  const values = samples.flatMap(sample => lines.map(line => sample[line.field] / scale));
  const top = nice(Math.max(0, ...values));
  const x = at => LEFT + (WIDTH - LEFT - RIGHT) * (at - begin) / (end - begin || 1);
  const y = value => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
  const last = samples[samples.length - 1];
  const paths = lines.map(line => s('path', { class: line.class,
    d: samples.map((sample, at) => `${at ? 'L' : 'M'}${x(sample.at).toFixed(1)} ${y(sample[line.field] / scale).toFixed(1)}`).join('') }));
  const changes = marks.filter(mark => new Date(mark.at) >= begin && new Date(mark.at) <= end + 10000).slice(0, 60).map(mark => {
    const at = Math.min(x(new Date(mark.at).getTime()), WIDTH - RIGHT);
    return s('line', { class: 'mark', x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }, s('title', {}, `${time(mark.at)} ${summary(mark)}`));
  });
  const label = `${title}: ${last ? (last[lines[0].field] / scale).toFixed(1) : 'no data'} ${unit} now, at most ${Math.max(0, ...values).toFixed(1)} ${unit}`;
  const svg = s('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': label },
    [0, top / 2, top].map(value => [
      s('line', { class: 'axis', x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      s('text', { class: 'dim', x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' }, value >= 1000 ? `${value / 1000}k` : +value.toFixed(2)),
    ]),
    s('text', { class: 'dim', x: LEFT, y: HEIGHT - 5 }, new Date(begin).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false })),
    s('text', { class: 'dim', x: WIDTH - RIGHT, y: HEIGHT - 5, 'text-anchor': 'end' }, 'now'),
    changes, paths);
  const now = last ? `${(last[lines[0].field] / scale).toFixed(last[lines[0].field] / scale < 10 ? 1 : 0)} ${unit}` : 'no sample yet';
  return h('section', { class: 'panel plot' }, h('h2', {}, title, h('span', {}, now)), svg);
}
