// A list of any length: only the visible lines exist. Arrow keys move, Enter opens.
import { h, empty } from './dom.js';

const HEIGHT = 34;

// columns: {title, width, cell(item)}; open(item) returns the address of its view.
export function list(columns, { open, key, label }) {
  const template = columns.map(column => column.width).join(' ');
  const setColumns = element => { element.style.gridTemplateColumns = template; return element; };
  const space = h('div', { class: 'space' });
  const scroll = h('div', { class: 'scroll', tabindex: '0', role: 'listbox', 'aria-label': label }, space);
  const head = setColumns(h('div', { class: 'head' }, columns.map(column => h('div', { class: 'cell' }, column.title))));
  const element = h('div', { class: 'grid fill' }, head, scroll);
  let items = [], current = 0, drawn = '';

  function line(item, index) {
    const tag = open ? 'a' : 'div';
    const of = h(tag, { class: index === current ? 'line on' : 'line', href: open ? open(item) : null, tabindex: '-1', role: 'option',
      'aria-selected': String(index === current), 'aria-posinset': index + 1, 'aria-setsize': items.length, id: `line-${index}` },
      columns.map(column => h('div', { class: 'cell' }, column.cell(item))));
    of.style.top = `${index * HEIGHT}px`;
    return setColumns(of);
  }

  function draw(force) {
    const first = Math.max(0, Math.floor(scroll.scrollTop / HEIGHT) - 8);
    const last = Math.min(items.length, Math.ceil((scroll.scrollTop + scroll.clientHeight) / HEIGHT) + 8);
    const state = `${first} ${last} ${current}`;
    if (!force && state === drawn) return;
    drawn = state;
    space.style.height = `${items.length * HEIGHT}px`;
    space.replaceChildren(...(items.length ? items.slice(first, last).map((item, index) => line(item, first + index)) : [empty('Nothing to show')]));
    scroll.setAttribute('aria-activedescendant', items.length ? `line-${current}` : '');
  }

  function move(to) {
    current = Math.max(0, Math.min(items.length - 1, to));
    const top = current * HEIGHT;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    if (top + HEIGHT > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + HEIGHT - scroll.clientHeight;
    draw(true);
  }

  scroll.addEventListener('scroll', () => draw(false), { passive: true });
  new ResizeObserver(() => draw(false)).observe(scroll);
  scroll.addEventListener('keydown', event => {
    const page = Math.floor(scroll.clientHeight / HEIGHT);
    const steps = { ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page, Home: 0, End: items.length - 1 };
    if (event.key in steps) { event.preventDefault(); move(steps[event.key]); }
    if (event.key === 'Enter' && open && items[current]) { event.preventDefault(); space.querySelector('.line.on')?.click(); }
  });
  return {
    element,
    set(next) {
      const known = items[current] && key ? key(items[current]) : null;
      items = next;
      const at = known === null ? -1 : items.findIndex(item => key(item) === known);
      current = at >= 0 ? at : Math.min(current, Math.max(0, items.length - 1));
      draw(true);
    },
  };
}

// A short list whose lines may be high.
export function plain(columns, items) {
  const template = columns.map(column => column.width).join(' ');
  const row = (tag, cells) => { const of = h('div', { class: tag }, cells); of.style.gridTemplateColumns = template; return of; };
  return h('div', { class: 'grid plain' }, row('head', columns.map(column => h('div', {}, column.title))),
    items.length ? items.map(item => row('line', columns.map(column => h('div', { class: 'cell' }, column.cell(item))))) : empty('Nothing to show'));
}
