"""The page to look at: `gravure.report(html=…)`, `explain(…).to_html(…)`, `gravure plan --html`.

It reads plain data (JSON) alone, and knows no program.
"""
