// Replaces the contents of the page when the server says that they have changed. Everything that it
// puts in is made and escaped by the server; the page works without this script.
"use strict";
(() => {
  const main = document.querySelector("main[data-stream]");
  const link = document.getElementById("link");
  if (!main || !window.EventSource) return;
  let pending = null;
  const show = (html) => {
    const focused = document.activeElement && main.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolls = [...main.querySelectorAll(".scroll, pre")].map((e) => e.scrollLeft);
    main.innerHTML = html;
    [...main.querySelectorAll(".scroll, pre")].forEach((e, i) => { e.scrollLeft = scrolls[i] || 0; });
    if (focused) {
      const again = document.getElementById(focused);
      if (again) again.focus({ preventScroll: true });
    }
  };
  // Text that the user is about to copy stays. A message can come before the event of a new
  // selection, so it looks itself.
  const selecting = () => {
    const s = document.getSelection();
    return s && !s.isCollapsed && main.contains(s.anchorNode);
  };
  document.addEventListener("selectionchange", () => {
    if (!selecting() && pending !== null) { show(pending); pending = null; }
  });
  const source = new EventSource(main.dataset.stream);
  source.onopen = () => { link.textContent = "live"; document.body.classList.remove("stale"); };
  source.onmessage = (e) => {
    if (selecting()) { pending = e.data; return; }
    pending = null; // older
    show(e.data);
  };
  source.onerror = () => { link.textContent = "coordctl does not answer; trying again"; document.body.classList.add("stale"); };
})();
