"""JSON as it is printed."""

import json
import math

from statewise.json_files import printable


def test_a_number_that_is_not_finite_is_printed_as_null():
    value = {"perplexity": math.inf, "rows": [(1.5, -math.inf), {"mean": math.nan}], "text": "NaN"}
    expected = {"perplexity": None, "rows": [[1.5, None], {"mean": None}], "text": "NaN"}
    assert json.loads(printable(value)) == expected
    assert "\n" not in printable(value, indent=None)
