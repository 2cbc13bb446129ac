// In a page itself, once it is laid out: what stands outside of it, and what axe-core finds, told to the page around.
function outside() {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const e of document.querySelectorAll("body *")) {
    // what scrolls in a box of its own is inside of that
    if (e.closest(".scroll") && !e.classList.contains("scroll")) continue;
    if (e.closest("nav .wrap") && !e.matches("nav .wrap")) continue;
    if (e.closest("svg") && e.tagName !== "svg") continue;
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > width + 0.5 || box.left < -0.5)) {
      const name = `${e.tagName.toLowerCase()}.${e.getAttribute("class")}`;
      found.push(`${name} from ${box.left} to ${box.right}: ${e.textContent.slice(0, 60)}`);
    }
  }
  for (const e of document.querySelectorAll("svg text")) {
    const svg = e.ownerSVGElement.getBoundingClientRect(), box = e.getBoundingClientRect();
    const far = Math.max(box.right - svg.right, svg.left - box.left, box.bottom - svg.bottom, svg.top - box.top);
    if (box.width && far > 0.02 * svg.width) found.push(`text of a drawing, ${Math.round(far)} px outside: ${e.textContent}`);
  }
  return found;
}
window.addEventListener("load", async () => {
  document.querySelectorAll("details").forEach((e) => { e.open = true; });
  const options = {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]};
  let axe_found = [];
  try {
    const done = await axe.run(document, options);
    const first = (v) => `${v.nodes[0].html.slice(0, 160)}: ${v.nodes[0].failureSummary}`;
    axe_found = done.violations.map((v) => `${v.id} (${v.nodes.length}): ${first(v)}`);
    if (!done.passes.length) axe_found.push("axe looked at nothing");
  } catch (error) { axe_found = [`axe: ${error}`]; }
  parent.postMessage(JSON.stringify({outside: outside(), axe: axe_found, height: document.documentElement.scrollHeight}), "*");
});
