// In a page of the site: how much wider it is than the window, told to the page around.
window.addEventListener("load", () => {
  const page = document.documentElement;
  document.body.setAttribute("data-md-color-scheme", "@scheme@");
  setTimeout(() => parent.postMessage(String(Math.max(0, page.scrollWidth - page.clientWidth)), "*"), 500);
});
