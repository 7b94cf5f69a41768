# Keeps BYTES of text in a variable and has subshells, pipes and commands work on it: each is a fork of a shell of that size.
# usage: pipes_and_forks.sh BYTES
set -eu
text=$(awk -v bytes="$1" 'BEGIN {
    for (at = 0; at < bytes; at += length(line)) {
        line = sprintf("%08d line %d of the text that is kept in a variable\n", (at * 7919) % 99999989, at)
        printf "%s", line
    }
}')
echo "${#text} bytes"
for round in 1 2 3 4; do
    # A writer and a reader for each pipe, both forked; the writer reads all of the variable.
    printf '%s\n' "$text" | cksum
    printf '%s\n' "$text" | awk -v round="$round" 'NR % 4 == round - 1' | sort | cksum
    # What a child changes is its own.
    (text="$round"; echo "in a child: ${#text}")
    # Two children beside each other, one in the background.
    (printf '%s\n' "$text" | cksum) >/dev/null &
    echo "nested: $(echo "$(echo "${#text}")")"
    wait "$!"
done
printf '%s\n' "$text" | cksum
