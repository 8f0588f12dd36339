/* Names for a screen reader that the theme leaves out: of the toggles of the navigation; and of the search button, whose
   name must have all of its text, which a phone does not show. */
addEventListener("load", () => {
  for (const summary of document.querySelectorAll(".bd-sidebar summary")) {
    const page = summary.closest("li")?.querySelector("a");
    summary.setAttribute("aria-label", `Pages below ${page?.textContent.trim() ?? "this one"}`);
  }
  for (const button of document.querySelectorAll(".search-button-field")) {
    button.setAttribute("aria-label", button.textContent.trim().replace(/\s+/g, " "));
  }
});
