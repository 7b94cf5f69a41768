"""Fills memory, and verifies all of it once it is told to. usage: program.py MEGABYTES FILE"""
import os
import sys
import time

PAGE = 4096


def word(number):
    return (number * 0x9E3779B97F4A7C15 + 1 & (1 << 64) - 1).to_bytes(8, "little")


def main():
    megabytes, said = int(sys.argv[1]), sys.argv[2]
    blocks = []
    for number in range(megabytes):
        block = bytearray(1 << 20)
        for at in range(0, len(block), PAGE):
            block[at : at + 8] = word(number * 256 + at // PAGE)
        blocks.append(block)
    with open(said, "w", encoding="ascii") as file:
        file.write("ready")
    while not os.path.exists(said + ".go"):
        time.sleep(0.01)
    rest = bytes(PAGE - 8)
    wrong = 0
    for number, block in enumerate(blocks):
        for at in range(0, len(block), PAGE):
            page = word(number * 256 + at // PAGE) + rest
            wrong += block[at : at + PAGE] != page
    with open(said + ".part", "w", encoding="ascii") as file:
        file.write(f"{wrong} wrong")
    os.rename(said + ".part", said + ".done")
    while True:
        time.sleep(1)


main()
