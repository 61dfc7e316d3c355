"""facts.py EXAMPLES: how many of its facts a long answer tells, by haystack.py's count."""
import sys

sys.path.insert(0, sys.argv[1])
import haystack

facts = {"Oslo": "1234567", "Lima": "7654321"}
for answer, told in (("Lima: 7654321\nOslo: 1234567", 2), ('{"Oslo": 1234567, "Lima": 7654321}', 2),
                     ("Oslo: 7654321\nLima: 1234567", 0),  # each number of the other city
                     ("Oslo: 1234567\nOslo: 1234567", 1), ("Oslo and Lima: 1234567, 7654321", 1),
                     ("Oslo: 12345678", 0), ("Oslo: 123456", 0), ("1234567 and 7654321", 0), ("", 0)):
    assert haystack.told_rightly(answer, facts) == told, (answer, told)

record = haystack.long_answer("list", 300, seed=4)
assert haystack.told_rightly("\n".join(f"{city}: {number}" for city, number in record["facts"].items()), record["facts"]) == 8
assert all(f"for {city} is: {number}." in record["prompt"] for city, number in record["facts"].items())
