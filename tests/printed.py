"""printed.py PROGRAM DOCUMENT: the document shows all that the program prints, line by line and in order, in its code blocks."""
import subprocess
import sys

program, document = sys.argv[1:]
printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
shown, fence = [], None
with open(document, encoding="utf-8") as file:
    for line in file.read().splitlines():
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        elif fence == "":
            shown.append(line)
shown = iter(shown)
missing = [line for line in printed if not any(line == other for other in shown)]
print("\n".join(f"{document} does not show there: {line}" for line in missing))
sys.exit(1 if missing or not printed else 0)
