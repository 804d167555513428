//! Measures the contrast of every text on a page by the formula of WCAG 2.

/// Returns texts whose contrast with their background is below 4.5, or 3 for large ones.
pub(crate) const SCRIPT: &str = r#"
const parse = color => {
  const parts = color.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0];
  return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 };
};
const light = rgb => {
  const [r, g, b] = rgb.map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (let of = element; of; of = of.parentElement) {
    const { rgb, alpha } = parse(getComputedStyle(of).backgroundColor);
    if (alpha > 0.99) return rgb;
  }
  return [255, 255, 255];
};
const weak = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
  if (!text || !element || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION', 'title'].includes(element.tagName)) continue;
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height || element.closest('.skip')) continue;
  const style = getComputedStyle(element), isSvg = element instanceof SVGElement;
  const color = parse(isSvg ? style.fill : style.color).rgb, ground = isSvg ? behind(element.closest('.panel') ?? document.body) : behind(element);
  const [one, other] = [light(color), light(ground)].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05), size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) weak.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
}
return weak;
"#;
