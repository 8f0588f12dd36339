/* Names for a screen reader, which the theme leaves out: of the toggles of the navigation, and of the search button, whose
   label is not the text that it shows. */
document.addEventListener("DOMContentLoaded", () => {
  for (const summary of document.querySelectorAll(".bd-sidebar summary")) {
    const page = summary.closest("li")?.querySelector("a");
    summary.setAttribute("aria-label", `Pages below ${page?.textContent.trim() ?? "this one"}`);
  }
  for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");
});
