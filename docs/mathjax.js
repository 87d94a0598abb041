// MathJax typesets what pymdownx.arithmatex marks, and nothing else.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]], processEscapes: true },
  options: { ignoreHtmlClass: ".*", processHtmlClass: "arithmatex" },
};
