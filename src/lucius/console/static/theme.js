// Sets the theme before the first paint. A classic script: a module would run after it.

const kept = localStorage.getItem("lucius.theme");
document.documentElement.dataset.theme = ["light", "dark"].includes(kept) ? kept : "auto";
