// Draws the figure of a section, if it has one.
function plot(section) {
  const data = section.querySelector("script[type='application/json']");
  if (!data) return null;
  const figure = JSON.parse(data.textContent);
  return Plotly.react(section.querySelector(".figure > div"), figure.data, figure.layout, {
    responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  });
}
