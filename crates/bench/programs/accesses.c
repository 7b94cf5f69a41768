// A tool for valgrind: writes down which pages a program accesses, in order, and whether it stores.
//
// The file: PTACCES1, then for each access a number in LEB128: twice the distance from the page
// accessed before, as zigzag, and one more for a store. A page that is among the last WINDOW
// written down, for a store among those stored to, is left out: the check for that is in the code
// itself.
#include "pub_tool_basics.h"
#include "pub_tool_aspacemgr.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcfile.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_machine.h"
#include "pub_tool_options.h"
#include "pub_tool_tooliface.h"
#include "pub_tool_vki.h"

// Moves a descriptor to where the program does not see it. Declared for valgrind's core alone.
extern Int VG_(safe_fd)(Int descriptor);

enum { WINDOW = 64, SLOTS = 1024, BUFFER = 1 << 16 };

// The pages written down of late, each at its number's remainder: loaded or stored, and stored.
static ULong recent[2][SLOTS];
static ULong ring[WINDOW];
static UInt ring_at;
static UChar buffer[BUFFER + 16];
static UInt filled;
static ULong before, accesses, most = ~0ULL;
static Int file = -1;
static const HChar *path;

static void flush(void) {
    UInt done = 0;
    while (file >= 0 && done < filled) {
        const Int n = VG_(write)(file, buffer + done, filled - done);
        if (n <= 0) VG_(tool_panic)("cannot write the recording");
        done += n;
    }
    filled = 0;
}

static VG_REGPARM(2) void touch(ULong page, ULong store) {
    if (file < 0) return;
    for (UInt kind = 0; kind <= store; kind++) recent[kind][page % SLOTS] = page;
    // Memory of files stays among the recent ones until another page takes its slot.
    const NSegment *segment = VG_(am_find_nsegment)(page << 12);
    if (segment && segment->kind != SkAnonC) return;
    const ULong old = ring[ring_at];
    for (UInt kind = 0; kind < 2; kind++)
        if (old != page && recent[kind][old % SLOTS] == old) recent[kind][old % SLOTS] = 0;
    ring[ring_at] = page;
    ring_at = (ring_at + 1) % WINDOW;
    const Long step = page - before;
    ULong left = ((ULong)step << 1 ^ step >> 63) << 1 | store;
    before = page;
    for (; left > 127; left >>= 7) buffer[filled++] = left | 128;
    buffer[filled++] = left;
    if (filled >= BUFFER) flush();
    if (++accesses == most) {
        flush();
        VG_(exit)(0);
    }
}

static void range(Addr at, SizeT size, ULong store) {
    for (ULong page = at >> 12; size && page <= (at + size - 1) >> 12; page++)
        if (recent[store][page % SLOTS] != page) touch(page, store);
}

static void written(CorePart part, ThreadId thread, Addr at, SizeT size) {
    if (part == Vg_CoreSysCall) range(at, size, 1);
}

static void read_by_core(CorePart part, ThreadId thread, const HChar *what, Addr at, SizeT size) {
    if (part == Vg_CoreSysCall) range(at, size, 0);
}

static IRExpr *word(ULong value) { return IRExpr_Const(IRConst_U64(value)); }

static IRExpr *compute(IRSB *out, IRType type, IRExpr *expression) {
    const IRTemp result = newIRTemp(out->tyenv, type);
    addStmtToIRSB(out, IRStmt_WrTmp(result, expression));
    return IRExpr_RdTmp(result);
}

static IRExpr *shift(IRSB *out, IROp direction, IRExpr *value, UChar bits) {
    IRExpr *by = IRExpr_Const(IRConst_U8(bits));
    return compute(out, Ity_I64, IRExpr_Binop(direction, value, by));
}

// Calls touch if the page of `at` is not among the recent ones.
static void check(IRSB *out, IRExpr *at, ULong store) {
    IRExpr *page = shift(out, Iop_Shr64, at, 12);
    IRExpr *slot = compute(out, Ity_I64, IRExpr_Binop(Iop_And64, page, word(SLOTS - 1)));
    IRExpr *offset = shift(out, Iop_Shl64, slot, 3), *table = word((ULong)recent[store]);
    IRExpr *place = compute(out, Ity_I64, IRExpr_Binop(Iop_Add64, offset, table));
    IRExpr *found = compute(out, Ity_I64, IRExpr_Load(Iend_LE, Ity_I64, place));
    IRExpr *is_new = compute(out, Ity_I1, IRExpr_Binop(Iop_CmpNE64, found, page));
    IRDirty *call = unsafeIRDirty_0_N(2, "touch", VG_(fnptr_to_fnentry)(touch),
                                      mkIRExprVec_2(page, word(store)));
    call->guard = is_new;
    addStmtToIRSB(out, IRStmt_Dirty(call));
}

static void look_at(IRSB *out, IRStmt *st) {
    if (st->tag == Ist_WrTmp && st->Ist.WrTmp.data->tag == Iex_Load)
        check(out, st->Ist.WrTmp.data->Iex.Load.addr, 0);
    else if (st->tag == Ist_Store) check(out, st->Ist.Store.addr, 1);
    else if (st->tag == Ist_StoreG) check(out, st->Ist.StoreG.details->addr, 1);
    else if (st->tag == Ist_LoadG) check(out, st->Ist.LoadG.details->addr, 0);
    else if (st->tag == Ist_CAS) check(out, st->Ist.CAS.details->addr, 1);
    else if (st->tag == Ist_LLSC) check(out, st->Ist.LLSC.addr, st->Ist.LLSC.storedata != NULL);
    else if (st->tag == Ist_Dirty && st->Ist.Dirty.details->mFx != Ifx_None)
        check(out, st->Ist.Dirty.details->mAddr, st->Ist.Dirty.details->mFx != Ifx_Read);
}

static IRSB *instrument(VgCallbackClosure *closure, IRSB *in, const VexGuestLayout *layout,
                        const VexGuestExtents *extents, const VexArchInfo *host, IRType guest_word,
                        IRType host_word) {
    IRSB *out = deepCopyIRSBExceptStmts(in);
    Int i = 0;
    for (; i < in->stmts_used && in->stmts[i]->tag != Ist_IMark; i++)
        addStmtToIRSB(out, in->stmts[i]);
    for (; i < in->stmts_used; i++) {
        look_at(out, in->stmts[i]);
        addStmtToIRSB(out, in->stmts[i]);
    }
    return out;
}

static Bool option(const HChar *argument) {
    return VG_STR_CLO(argument, "--output", path) || VG_INT_CLO(argument, "--accesses", most);
}

static void usage(void) { VG_(printf)("    --output=FILE --accesses=NUMBER\n"); }
static void nothing(void) {}
static void in_child(ThreadId thread) { file = -1; }
static void end(Int code) { flush(); }

static void begin(void) {
    const Int how = VKI_O_CREAT | VKI_O_TRUNC | VKI_O_WRONLY;
    const SysRes opened = VG_(open)(path ? path : "", how, 0644);
    if (sr_isError(opened)) {
        VG_(umsg)("--output must name a file that can be written\n");
        VG_(exit)(1);
    }
    file = VG_(safe_fd)(sr_Res(opened));
    VG_(memcpy)(buffer, "PTACCES1", filled = 8);
    VG_(atfork)(NULL, NULL, in_child);
}

static void set_up(void) {
    VG_(details_name)("accesses");
    VG_(details_version)(NULL);
    VG_(details_description)("records the pages a program accesses");
    VG_(details_copyright_author)("Pagetide's authors");
    VG_(details_bug_reports_to)("Pagetide's authors");
    VG_(basic_tool_funcs)(begin, instrument, end);
    VG_(needs_command_line_options)(option, usage, nothing);
    VG_(track_post_mem_write)(written);
    VG_(track_pre_mem_read)(read_by_core);
}

VG_DETERMINE_INTERFACE_VERSION(set_up)
