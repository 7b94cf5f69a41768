// Goroutines, maps and slices under a concurrent garbage collector, with memory of C beside it: heap MIB
package main

/*
#include <stdlib.h>
#include <string.h>
static unsigned char *fill(size_t length, int seed) {
    unsigned char *memory = malloc(length);
    for (size_t i = 0; i < length; i++) memory[i] = (unsigned char)(i * 31 + seed + (i >> 12));
    return memory;
}
*/
import "C"

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

func work(seed, count int) string {
	state := uint64(seed)
	names := make([]string, 0)
	index := map[string][]int{}
	for i := 0; i < count; i++ {
		state = state*6364136223846793005 + 1442695040888963407
		name := strings.Repeat(strconv.FormatUint(state>>20, 16), 1+i%12)
		names = append(names, name)
		index[name[:5]] = append(index[name[:5]], i)
	}
	sort.Strings(names)
	sum := sha256.New()
	for _, name := range names {
		sum.Write([]byte(name))
	}
	return fmt.Sprintf("%d %x", len(index), sum.Sum(nil))
}

func main() {
	mebibytes, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	length := mebibytes << 20 / 4
	foreign := C.fill(C.size_t(length), 7)
	results := make([]string, 4)
	var group sync.WaitGroup
	for i := range results {
		group.Add(1)
		go func() {
			defer group.Done()
			results[i] = work(i, mebibytes*900)
		}()
	}
	group.Wait()
	fmt.Println(strings.Join(results, "\n"))
	fmt.Printf("%x\n", sha256.Sum256(unsafe.Slice((*byte)(unsafe.Pointer(foreign)), length)))
	out, err := exec.Command("echo", "a child of a Go program").Output()
	fmt.Print(string(out), err, "\n")
}
