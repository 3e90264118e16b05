// Clicks on the page's own buttons go to the server as one event, with what they are for.
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-action]");
  if (!button || button.disabled || !element.contains(button)) return;
  if (button.dataset.confirm && !window.confirm(button.dataset.confirm)) return;
  trigger("click", { action: button.dataset.action, id: button.dataset.id });
  const narrow = window.matchMedia("(max-width: 700px)").matches;
  if (narrow && button.dataset.action === "show") scrollToTop("sr-film");
  if (narrow && button.dataset.action === "reuse") scrollToTop("sr-form");
});
function scrollToTop(id) {
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.getElementById(id)?.scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}
// A film was ordered: on a narrow screen it is out of sight.
if (element.closest("#sr-film") || element.id === "sr-film") {
  document.addEventListener("sr-made", () => {
    if (window.matchMedia("(max-width: 700px)").matches && element.querySelector(".sr-stages")) scrollToTop("sr-film");
  });
}
