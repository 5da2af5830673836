// Keeps a view up to date. Without this file, the page shows the state of when it was loaded.
(function () {
  "use strict";
  var main = document.querySelector("main[data-live]");
  var link = document.getElementById("link");
  var offset = 0; // milliseconds by which the server's clock is ahead

  // Sets the offset from the server's time in a new element.
  function set(at) {
    var now = at.querySelector("[data-now]");
    if (now) { offset = Number(now.dataset.now) - Date.now(); }
  }

  // Formats a time as the server does: "in 2m 5s".
  function span(ms) {
    var s = Math.floor(ms / 1000);
    if (s < 60) { return s + "." + Math.floor((ms % 1000) / 100) + "s"; }
    if (s < 3600) { return Math.floor(s / 60) + "m " + (s % 60) + "s"; }
    if (s < 86400) { return Math.floor(s / 3600) + "h " + Math.floor((s % 3600) / 60) + "m"; }
    return Math.floor(s / 86400) + "d " + Math.floor((s % 86400) / 3600) + "h";
  }
  function count() {
    var now = Date.now() + offset;
    document.querySelectorAll("[data-ends]").forEach(function (it) {
      var left = Number(it.dataset.ends) - now;
      var text = left > 0 ? "in " + span(left) : "now";
      if (it.textContent !== text) { it.textContent = text; }
    });
  }

  if (!main || !window.EventSource) { return; }

  function say(state, text) {
    if (link.dataset.state === state && link.textContent === text) { return; }
    link.dataset.state = state;
    link.textContent = text;
    document.body.classList.toggle("stale", state === "lost" || state === "out");
  }

  // Puts new HTML into an element and keeps the focus.
  function put(part) {
    var at = document.getElementById(part.id);
    if (!at) {
      at = document.createElement("div");
      at.id = part.id;
      at.className = "part part-" + part.id;
      main.appendChild(at);
    }
    var active = document.activeElement, key = null, scrolled = [];
    if (active && at.contains(active)) {
      if (active.tagName === "INPUT") { return; } // the visitor is typing
      key = active.getAttribute("href") ? 'a[href="' + CSS.escape(active.getAttribute("href")) + '"]' : active.id ? "#" + CSS.escape(active.id) : ".scroll";
    }
    at.querySelectorAll(".scroll").forEach(function (it) { scrolled.push(it.scrollLeft); });
    at.innerHTML = part.html; // the server's own HTML, in which all text from outside is escaped
    set(at);
    at.querySelectorAll(".scroll").forEach(function (it, i) { it.scrollLeft = scrolled[i] || 0; });
    if (key) {
      var again = at.querySelector(key);
      if (again) { again.focus({ preventScroll: true }); }
    }
  }

  var source = null, timer = null, since = null;
  function clock() { return new Date(Date.now() + offset).toISOString().slice(11, 19); }
  function lost() {
    since = since || clock();
    say("lost", "No connection since " + since + ". Trying again…");
  }
  function later() {
    clearTimeout(timer);
    timer = setTimeout(open, 5000);
  }
  function close() {
    clearTimeout(timer);
    if (source) { source.close(); source = null; }
  }
  function open() {
    close();
    source = new EventSource(location.href.split("#")[0]);
    source.onopen = function () { since = null; say("live", "Live"); };
    source.addEventListener("part", function (event) {
      put(JSON.parse(event.data));
      count();
    });
    source.addEventListener("out", function () {
      close();
      say("out", "Signed out. Load the page again.");
    });
    source.onerror = function () {
      if (source && source.readyState === EventSource.CLOSED) {
        // The browser has given up: the worker is busy, or requires a new session.
        close();
        fetch(location.href, { method: "HEAD", redirect: "manual", cache: "no-store" }).then(function (answer) {
          if (answer.type === "opaqueredirect") { say("out", "Signed out. Load the page again."); return; }
          lost();
          later();
        }, function () { lost(); later(); });
        return;
      }
      lost();
    };
  }
  // A page in the background has no viewer.
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) { close(); } else { open(); }
  });
  set(main);
  setInterval(count, 1000);
  if (!document.hidden) { open(); }
})();
