// What comes before all else. Sets the theme before the first paint. A classic script: a module would run after it.

const kept = localStorage.getItem("lucius.theme");
document.documentElement.dataset.theme = ["light", "dark"].includes(kept) ? kept : "auto";

// Where a file of the page does not come, none of it runs: it says so, and comes again once Lucius answers.
addEventListener("error", ({ target }) => {
  if (target.tagName !== "SCRIPT") return;
  const told = document.createElement("div");
  Object.assign(told, { className: "notice", role: "alert", textContent: "The page could not be loaded. It tries again by itself once Lucius answers." });
  document.getElementById("view").replaceChildren(told);
  const again = () => fetch("/", { method: "HEAD", cache: "no-store" }).then(() => location.reload(), () => setTimeout(again, 3000));
  setTimeout(again, 3000);
}, true);
