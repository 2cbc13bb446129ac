// In a page of the site: types a word into the search as a reader would, and says where the answers lead.
(() => {
  const deep = (root) => [...root.querySelectorAll("*")].flatMap((e) => [e, ...(e.shadowRoot ? deep(e.shadowRoot) : [])]);
  const told = document.createElement("pre");
  told.id = "said";
  window.addEventListener("error", (e) => { told.textContent += `error: ${e.message}\n`; });
  window.addEventListener("load", () => setTimeout(() => {
    [...document.querySelectorAll("button")].find((e) => e.textContent.includes("Search")).click();
    setTimeout(() => {
      const input = deep(document).find((e) => e.tagName === "INPUT" && e.getRootNode() !== document);
      input.value = "@word@";
      input.dispatchEvent(new Event("input", {bubbles: true, composed: true}));
      setTimeout(() => {
        const links = deep(document).filter((e) => e.tagName === "A" && e.getRootNode() !== document);
        told.textContent += links.map((e) => e.href).join("\n");
        document.body.append(told);
      }, 4000);
    }, 2000);
  }, 1000));
})();
