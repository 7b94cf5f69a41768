/* A guest for Firecracker that is nothing but this: no kernel, no interrupts, one processor. It fills its memory with
 * what can be told again, and then does what it is told at its serial port, a letter each:
 *
 *   v     verifies all of it, and says how many pages are right, how many wrong
 *   1..9  writes to one page in seven, so that clones differ by the digit
 *   b     gives as many pages to the balloon as the host asks for; they are to read as zeros from then on
 *   p     takes as much memory as the host has it plug in beside its own, and fills it
 *   u     gives that back
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

/* virtio-mmio: where Firecracker has its first device, and registers. */
#define DEVICES 0xc0001000ul
enum { MAGIC = 0x00, ID = 0x08, FEATURES = 0x20, FEATURES_PART = 0x24, QUEUE_SELECT = 0x30, QUEUE_SIZE = 0x38 };
enum { QUEUE_READY = 0x44, NOTIFY = 0x50, STATUS = 0x70, DESCRIPTORS = 0x80, AVAILABLE = 0x90, USED = 0xa0 };
enum { CONFIG = 0x100, BALLOON = 5, MEMORY = 24, DRIVER = 3, FEATURES_OK = 8, DRIVER_OK = 4 };
enum { NEXT = 1, WRITE = 2, BLOCK = 2 << 20 };

struct descriptor { u64 address; u32 len; u16 flags, next; };
struct available { u16 flags, index, ring[QUEUE], event; };
struct used { u16 flags, index; struct { u32 id, len; } ring[QUEUE]; u16 event; };

static struct queue {
    struct descriptor descriptors[QUEUE];
    struct available available __attribute__((aligned(16)));
    struct used used __attribute__((aligned(16)));
} queues[3] __attribute__((aligned(PAGE)));
/* Pages that are on their way to the balloon. */
static u32 frames[QUEUE] __attribute__((aligned(PAGE)));
/* What is asked of the device that plugs memory in, and its answer. */
static struct { u16 type, padding[3]; u64 address; u16 blocks, more[3]; } request;
static struct { u16 type, padding[3], state; } answer;
/* What maps the devices below 4 GiB, and memory that is plugged in. */
static u64 low[512] __attribute__((aligned(PAGE))), high[512] __attribute__((aligned(PAGE)));
static u64 upper[512] __attribute__((aligned(PAGE)));
/* Where their registers are, or 0. */
static u64 balloon, memory;
/* The end of its own memory, what the balloon has of it, and what is plugged in, in pages. */
static u64 pages, ballooned, plugged, plugged_at;
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

static volatile u32 *reg(u64 device, u32 offset) { return (volatile u32 *)(device + offset); }

static u64 *page(u64 number) { return (u64 *)(number * PAGE); }

/* Whether nothing is to be written to a page: one in five is zeros. */
static int is_zeros(u64 number) { return (number < pages && number >= pages - ballooned) || number % 5 == 3; }

static u64 seed(u64 number)
{
    u64 value = number * 0x9e3779b97f4a7c15ul;
    return mark && number % 7 == 0 ? value ^ mark : value;
}

/* Every so many of those from `first` to `end`. */
static void fill(u64 first, u64 end, u64 every)
{
    for (u64 number = (first + every - 1) / every * every; number < end; number += every)
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

/* How many of those from `first` to `end` are right. */
static u64 verify(u64 first, u64 end)
{
    u64 right = 0;
    for (u64 number = first; number < end; number++)
        if (is_right(number))
            right++;
        else if (right == number - first)
            say_count("the first wrong page is ", number, "\n");
    return right;
}

static void verify_all(void)
{
    u64 right = verify(FIRST, pages) + verify(plugged_at, plugged_at + plugged);
    say_count("verified: ", right, " right, ");
    say_count("", pages - FIRST + plugged - right, " wrong\n");
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

static void make_queue(u64 device, u32 number, struct queue *queue)
{
    u64 parts[] = {(u64)queue->descriptors, (u64)&queue->available, (u64)&queue->used};
    u32 registers[] = {DESCRIPTORS, AVAILABLE, USED};
    *reg(device, QUEUE_SELECT) = number;
    *reg(device, QUEUE_SIZE) = QUEUE;
    for (int part = 0; part < 3; part++) {
        *reg(device, registers[part]) = (u32)parts[part];
        *reg(device, registers[part] + 4) = (u32)(parts[part] >> 32);
    }
    *reg(device, QUEUE_READY) = 1;
}

/* Makes the device of this kind ready, with these features of its own and so many queues; where it is, or 0. */
static u64 start(u32 id, u32 features, struct queue *first, u32 count)
{
    u64 device = DEVICES;
    while (*reg(device, MAGIC) == 0x74726976 && *reg(device, ID) != id)
        device += PAGE;
    if (*reg(device, MAGIC) != 0x74726976)
        return 0;
    *reg(device, STATUS) = 0;
    *reg(device, STATUS) = 1;
    *reg(device, STATUS) = DRIVER;
    *reg(device, FEATURES_PART) = 0;
    *reg(device, FEATURES) = features;
    /* The version of the protocol. */
    *reg(device, FEATURES_PART) = 1;
    *reg(device, FEATURES) = 1;
    *reg(device, STATUS) = DRIVER | FEATURES_OK;
    for (u32 number = 0; number < count; number++)
        make_queue(device, number, first + number);
    *reg(device, STATUS) = DRIVER | FEATURES_OK | DRIVER_OK;
    return device;
}

/* Maps the fourth GiB, and the first one from 512 GiB on, in the tables that the processor was started with. */
static void map(void)
{
    for (u64 entry = 0; entry < 512; entry++) {
        low[entry] = (0xc0000000ul + (entry << 21)) | 0x83;
        high[entry] = ((1ul << 39) + (entry << 21)) | 0x83;
    }
    upper[0] = (u64)high | 0x03;
    ((volatile u64 *)0xa000)[3] = (u64)low | 0x03;
    ((volatile u64 *)0x9000)[1] = (u64)upper | 0x03;
    __asm__ volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" : : : "rax", "memory");
}

/* Hands over what the first descriptors say, and waits until it was dealt with. */
static void hand_over(u64 device, struct queue *queue)
{
    u16 next = queue->available.index;
    queue->available.ring[next % QUEUE] = 0;
    barrier();
    *(volatile u16 *)&queue->available.index = ++next;
    barrier();
    *reg(device, NOTIFY) = 0;
    while (*(volatile u16 *)&queue->used.index != next)
        __asm__ volatile("pause");
    barrier();
}

/* Pages below those that were given up before. */
static void give_up(u32 count)
{
    for (u32 number = 0; number < count; number++)
        frames[number] = pages - ballooned - 1 - number;
    queues[0].descriptors[0] = (struct descriptor){(u64)frames, count * 4, 0, 0};
    hand_over(balloon, &queues[0]);
    ballooned += count;
}

static void inflate(void)
{
    u32 wanted = *reg(balloon, CONFIG);
    while (ballooned < wanted)
        give_up(wanted - ballooned < QUEUE ? wanted - ballooned : QUEUE);
    say_count("given up: ", ballooned, "\n");
}

/* Plugs blocks of 2 MiB in (0), or out (1), as many as the host asks for; all are the first of their region. */
static void plug(u16 type)
{
    u64 asked = *(volatile u64 *)reg(memory, CONFIG + 48) / PAGE;
    u64 address = *(volatile u64 *)reg(memory, CONFIG + 16);
    u64 blocks = (type ? plugged - asked : asked - plugged) * PAGE / BLOCK;
    plugged_at = address / PAGE;
    request.type = type;
    request.address = address + (type ? asked : plugged) * PAGE;
    request.blocks = blocks;
    queues[2].descriptors[0] = (struct descriptor){(u64)&request, sizeof request, NEXT, 1};
    queues[2].descriptors[1] = (struct descriptor){(u64)&answer, sizeof answer, WRITE, 0};
    answer.type = 99;
    hand_over(memory, &queues[2]);
    if (*(volatile u16 *)&answer.type)
        return say_count("refused: ", answer.type, "\n");
    fill(plugged_at + plugged, plugged_at + asked, 1);
    plugged = asked;
    say_count("plugged: ", plugged, "\n");
}

__attribute__((noreturn, used)) static void guest(const u8 *parameters)
{
    pages = end_of_memory(parameters);
    map();
    balloon = start(BALLOON, 0, &queues[0], 2);
    /* With memory that is not to be touched while it is not plugged in, which Firecracker insists on. */
    memory = start(MEMORY, 2, &queues[2], 1);
    fill(FIRST, pages, 1);
    say_count("filled: ", pages - FIRST, "\n");
    for (;;) {
        /* Has a byte come? */
        if (!(in(SERIAL + 5) & 1)) {
            __asm__ volatile("pause");
            continue;
        }
        u8 letter = in(SERIAL);
        if (letter == 'v')
            verify_all();
        else if (letter == 'b')
            inflate();
        else if (letter == 'p' || letter == 'u')
            plug(letter == 'u');
        else if (letter >= '1' && letter <= '9') {
            mark = letter;
            fill(FIRST, pages, 7);
            fill(plugged_at, plugged_at + plugged, 7);
            say("marked\n");
        }
    }
}

/* Its stack is here; %rsi has the boot parameters. */
static u8 stack[16384] __attribute__((aligned(16), used));
__asm__(".globl _start\n_start: cli\nlea stack+16384(%rip), %rsp\nmov %rsi, %rdi\ncall guest\n");
