#!/bin/sh
# Builds the C libraries: link.sh PROFILE TARGET-DIRECTORY OUT
# OUT gets lib/libpagetide.so.VERSION with its links, lib/libpagetide.a, lib/pkgconfig/pagetide.pc and include/pagetide.h.
# The shared library is linked here and not by Cargo, which takes no version script of ours beside its own.
set -eu
profile=$1 target=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' ../../Cargo.toml | head -1)
major=${version%%.*}
# `needed` is what `rustc --print native-static-libs` says for this library.
needed="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

CARGO_TARGET_DIR=$target "${CARGO:-cargo}" rustc --quiet -p pagetide-capi --profile "$profile" --crate-type staticlib
case $profile in
dev) directory=debug strip= ;;
*) directory=$profile strip=-Wl,--strip-debug ;;
esac
archive=$target/$directory/libpagetide_capi.a

mkdir -p "$out/lib/pkgconfig" "$out/include"
${CC:-cc} -shared -o "$out/lib/libpagetide.so.$version" \
    -Wl,-soname,"libpagetide.so.$major" -Wl,--version-script=pagetide.map -Wl,--gc-sections -Wl,-z,relro,-z,now $strip \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive $needed
ln -sf "libpagetide.so.$version" "$out/lib/libpagetide.so.$major"
ln -sf "libpagetide.so.$major" "$out/lib/libpagetide.so"
cp "$archive" "$out/lib/libpagetide.a"
cp include/pagetide.h "$out/include/pagetide.h"
cat >"$out/lib/pkgconfig/pagetide.pc" <<PC
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: pagetide
Description: Page-level control of memory from user space
Version: $version
Libs: -L\${libdir} -lpagetide
Libs.private: $needed
Cflags: -I\${includedir}
PC
