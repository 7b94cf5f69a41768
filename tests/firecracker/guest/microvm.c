/* A guest for Firecracker that is nothing but this: no kernel, no interrupts, one processor. It fills its memory with
 * what can be told again, and then does what it is told at its serial port, a letter each:
 *
 *   v     verifies all of it, and says how many pages are right, how many wrong
 *   1..9  writes to one page in seven, so that clones differ by the digit
 *   b     gives as many pages to the balloon as the host asks for; they are to read as zeros from then on
 *
 * Linked to be loaded at 1 MiB and entered in long mode, with the first GiB mapped as it is (boot protocol of Linux).
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

enum { PAGE = 4096, WORDS = PAGE / 8, SERIAL = 0x3f8, QUEUE = 256, FIRST = (2 << 20) / PAGE };

/* Of so many words of a page one is filled and verified. A processor that is emulated has no time for all. */
#ifndef STEP
#define STEP 1
#endif

/* virtio-mmio: Firecracker's first device, and its registers. */
#define DEVICE 0xc0001000ul
enum { MAGIC = 0x00, ID = 0x08, FEATURES = 0x20, FEATURES_PART = 0x24, QUEUE_SELECT = 0x30, QUEUE_SIZE = 0x38 };
enum { QUEUE_READY = 0x44, NOTIFY = 0x50, STATUS = 0x70, DESCRIPTORS = 0x80, AVAILABLE = 0x90, USED = 0xa0 };
enum { CONFIG = 0x100, BALLOON = 5 };

struct descriptor { u64 address; u32 len; u16 flags, next; };
struct available { u16 flags, index, ring[QUEUE], event; };
struct used { u16 flags, index; struct { u32 id, len; } ring[QUEUE]; u16 event; };

static struct queue {
    struct descriptor descriptors[QUEUE];
    struct available available __attribute__((aligned(16)));
    struct used used __attribute__((aligned(16)));
} queues[2] __attribute__((aligned(PAGE)));
/* Pages that are on their way to the balloon. */
static u32 frames[QUEUE] __attribute__((aligned(PAGE)));
/* What maps the devices below 4 GiB. */
static u64 directory[512] __attribute__((aligned(PAGE)));
static u64 pages, ballooned;
static u8 mark;

static void out(u16 port, u8 value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port) : "memory"); }

static u8 in(u16 port)
{
    u8 value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port) : "memory");
    return value;
}

/* (Not mfence, which an emulated processor may lack.) */
static void barrier(void) { __asm__ volatile("lock; orl $0, (%%rsp)" : : : "memory", "cc"); }

static void say(const char *text)
{
    while (*text)
        out(SERIAL, *text++);
}

static void say_number(u64 number)
{
    char text[21] = {0};
    int at = 20;
    do
        text[--at] = '0' + number % 10;
    while (number /= 10);
    say(text + at);
}

static void say_count(const char *before, u64 count, const char *after)
{
    say(before);
    say_number(count);
    say(after);
}

static volatile u32 *device(u32 offset) { return (volatile u32 *)(DEVICE + offset); }

static u64 *page(u64 number) { return (u64 *)(number * PAGE); }

/* Whether nothing is to be written to a page: one in five is zeros. */
static int is_zeros(u64 number) { return number >= pages - ballooned || number % 5 == 3; }

static u64 seed(u64 number)
{
    u64 value = number * 0x9e3779b97f4a7c15ul;
    return mark && number % 7 == 0 ? value ^ mark : value;
}

static void fill(u64 every)
{
    for (u64 number = (FIRST + every - 1) / every * every; number < pages; number += every)
        for (u64 at = 0, value = seed(number); at < WORDS && !is_zeros(number); at += STEP)
            page(number)[at] = value + at;
}

static int is_right(u64 number)
{
    u64 zeros = is_zeros(number), value = seed(number);
    for (u64 at = 0; at < WORDS; at += STEP)
        if (page(number)[at] != (zeros ? 0 : value + at))
            return 0;
    return 1;
}

static void verify(void)
{
    u64 right = 0, wrong = 0;
    for (u64 number = FIRST; number < pages; number++)
        if (is_right(number))
            right++;
        else if (!wrong++)
            say_count("the first wrong page is ", number, "\n");
    say_count("verified: ", right, " right, ");
    say_count("", wrong, " wrong\n");
}

/* The last page of memory: that of the e820 entry which begins at 1 MiB, of the boot parameters. */
static u64 end_of_memory(const u8 *parameters)
{
    for (u8 entry = 0; entry < parameters[0x1e8]; entry++) {
        const u8 *at = parameters + 0x2d0 + entry * 20;
        u64 address, size;
        __builtin_memcpy(&address, at, 8);
        __builtin_memcpy(&size, at + 8, 8);
        if (address == 0x100000)
            return (address + size) / PAGE;
    }
    return 0;
}

static void make_queue(u32 number, struct queue *queue)
{
    u64 parts[] = {(u64)queue->descriptors, (u64)&queue->available, (u64)&queue->used};
    u32 registers[] = {DESCRIPTORS, AVAILABLE, USED};
    *device(QUEUE_SELECT) = number;
    *device(QUEUE_SIZE) = QUEUE;
    for (int part = 0; part < 3; part++) {
        *device(registers[part]) = (u32)parts[part];
        *device(registers[part] + 4) = (u32)(parts[part] >> 32);
    }
    *device(QUEUE_READY) = 1;
}

/* Finds the balloon, if there is one, and makes it ready. */
static void start_balloon(void)
{
    /* The fourth GiB, by the tables that the processor was started with. */
    for (u64 entry = 0; entry < 512; entry++)
        directory[entry] = (0xc0000000ul + (entry << 21)) | 0x83;
    ((volatile u64 *)0xa000)[3] = (u64)directory | 0x03;
    __asm__ volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" : : : "rax", "memory");
    if (*device(MAGIC) != 0x74726976 || *device(ID) != BALLOON)
        return say("no balloon\n");
    /* Acknowledged, driver; the version of the protocol and no other feature; features, driver ready. */
    *device(STATUS) = 0;
    *device(STATUS) = 1;
    *device(STATUS) = 3;
    *device(FEATURES_PART) = 1;
    *device(FEATURES) = 1;
    *device(STATUS) = 11;
    for (u32 number = 0; number < 2; number++)
        make_queue(number, &queues[number]);
    *device(STATUS) = 15;
    say("a balloon\n");
}

/* Hands `count` pages below those that were handed over to the balloon, and waits until they are gone. */
static void hand_over(u32 count)
{
    struct queue *queue = &queues[0];
    for (u32 number = 0; number < count; number++)
        frames[number] = pages - ballooned - 1 - number;
    queue->descriptors[0] = (struct descriptor){(u64)frames, count * 4, 0, 0};
    u16 next = queue->available.index;
    queue->available.ring[next % QUEUE] = 0;
    barrier();
    *(volatile u16 *)&queue->available.index = ++next;
    barrier();
    *device(NOTIFY) = 0;
    while (*(volatile u16 *)&queue->used.index != next)
        __asm__ volatile("pause");
    ballooned += count;
}

static void inflate(void)
{
    u32 wanted = *device(CONFIG);
    while (ballooned < wanted)
        hand_over(wanted - ballooned < QUEUE ? wanted - ballooned : QUEUE);
    say_count("given up: ", ballooned, "\n");
}

__attribute__((noreturn, used)) static void guest(const u8 *parameters)
{
    pages = end_of_memory(parameters);
    start_balloon();
    fill(1);
    say_count("filled: ", pages - FIRST, "\n");
    for (;;) {
        /* Has a byte come? */
        if (!(in(SERIAL + 5) & 1)) {
            __asm__ volatile("pause");
            continue;
        }
        u8 letter = in(SERIAL);
        if (letter == 'v')
            verify();
        else if (letter == 'b')
            inflate();
        else if (letter >= '1' && letter <= '9') {
            mark = letter;
            fill(7);
            say("marked\n");
        }
    }
}

/* Its stack is here; %rsi has the boot parameters. */
static u8 stack[16384] __attribute__((aligned(16), used));
__asm__(".globl _start\n_start: cli\nlea stack+16384(%rip), %rsp\nmov %rsi, %rdi\ncall guest\n");
