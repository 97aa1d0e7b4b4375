"use strict";
// Before the first paint: the theme that the user chose; without a choice the system decides.
try {
  const theme = localStorage.getItem("fabric.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* no storage, no choice */ }
