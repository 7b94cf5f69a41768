#!/bin/sh
# Lays what users get under DESTINATION, by the prefix that it will have: command, agent, man pages, completions, documentation.
#
# usage: stage.sh DESTINATION BUILD
#   DESTINATION  for example root/usr or pagetide-0.1.0
#   BUILD        a directory with pagetide and libpagetide_preload.so, such as target/release
set -eu

to=$1 build=$2
here=$(cd "$(dirname "$0")/.." && pwd)

for built in pagetide libpagetide_preload.so; do
    [ -f "$build/$built" ] || { echo "there is no $build/$built: build it first" >&2; exit 1; }
done
install -d "$to/bin" "$to/lib/pagetide" "$to/share/man/man1" "$to/share/doc/pagetide/examples" \
    "$to/share/bash-completion/completions" "$to/share/zsh/vendor-completions" "$to/share/fish/vendor_completions.d"
strip --strip-unneeded -o "$to/bin/pagetide" "$build/pagetide"
strip --strip-unneeded -o "$to/lib/pagetide/libpagetide_preload.so" "$build/libpagetide_preload.so"
chmod 755 "$to/bin/pagetide"
chmod 644 "$to/lib/pagetide/libpagetide_preload.so"

"$build/pagetide" man "$to/share/man/man1"
# The command that `pagetide bench` runs stays with its sources, and so does its page.
rm -f "$to/share/man/man1/pagetide-bench.1"
"$build/pagetide" completions bash >"$to/share/bash-completion/completions/pagetide"
"$build/pagetide" completions zsh >"$to/share/zsh/vendor-completions/_pagetide"
"$build/pagetide" completions fish >"$to/share/fish/vendor_completions.d/pagetide.fish"

for file in README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md; do
    install -m 644 "$here/$file" "$to/share/doc/pagetide/$file"
done
# Their links lead to each other, to the decisions and to the pictures.
(cd "$here" && find docs -type f) | while read -r file; do
    install -D -m 644 "$here/$file" "$to/share/doc/pagetide/$file"
done
for folder in monitoring systemd kubernetes; do
    install -d "$to/share/doc/pagetide/examples/$folder"
    install -m 644 "$here/examples/$folder"/* "$to/share/doc/pagetide/examples/$folder/"
done
