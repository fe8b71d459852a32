# What an agent hands over: one block of Python instead of a dozen tool calls. Every result stays
# in the kernel; only what is printed goes back to the agent.
import matplotlib.pyplot as plt

from mcptools.everything import get_sum, get_tiny_image
from mcptools.files import list_directory, read_text_file, write_file

# Which of the reports in this workspace is the longest, and how many words have all of them?
names = [
    line.removeprefix("[FILE] ")
    for line in list_directory.run(path="reports").content.splitlines()
    if line.startswith("[FILE] ")
]
words = {}
total = 0.0
for name in names:
    text = read_text_file.run(path=f"reports/{name}").content
    words[name] = len(text.split())
    answer = get_sum.run(a=total, b=words[name])
    total = float(answer.split(" is ")[-1].rstrip("."))

longest = max(words, key=words.get)
write_file.run(path="reports/summary.md", content=f"{len(words)} reports, {total:.0f} words\n")
print(f"{len(words)} reports, {total:.0f} words in all; the longest is {longest} ({words[longest]} words).")

# A plot, and an image that a tool sent: both come back as files.
plt.bar(list(words), list(words.values()))
plt.ylabel("words")
plt.show()

image = next(part for part in get_tiny_image.run() if not isinstance(part, str))
print("The tool sent", image)
image
