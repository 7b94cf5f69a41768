/* Executable anonymous memory: code that was written, evicted, protected and fetched still runs. */
#include "hazard.h"

static void hazard(void) {
    /* mov eax, imm32; ret: one function a page, the rest of the page is filler that must survive too. */
    size_t pages = memory_bytes / PAGE;
    unsigned char *code = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) skip("writable and executable memory is refused here: %s", strerror(errno));
    for (int round = 0; round < 3; round++) {
        fill(code, memory_bytes, round + 1);
        for (size_t i = 0; i < pages; i++) {
            uint32_t value = i * 2654435761u + round;
            unsigned char *at = code + i * PAGE + (i % 16) * 8;
            at[0] = 0xb8;
            memcpy(at + 1, &value, 4);
            at[5] = 0xc3;
        }
        if (round == 1) NEED(mprotect(code, memory_bytes, PROT_READ | PROT_EXEC) == 0);
        for (size_t i = 0; i < pages; i++) {
            uint32_t (*function)(void) = (uint32_t(*)(void))(code + i * PAGE + (i % 16) * 8);
            if (function() != (uint32_t)(i * 2654435761u + round)) fail("the function on page %zu gave a wrong value", i);
            check(code + i * PAGE + 256, PAGE - 256, round + 1, "beside the code");
        }
        if (round == 1) NEED(mprotect(code, memory_bytes, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    }
}
