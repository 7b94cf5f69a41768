import java.util.ArrayList;
import java.util.HashMap;
import java.util.stream.IntStream;

/** Collections, strings and parallel streams under a moving garbage collector: Heap MIB. */
public class Heap {
    static long mix(long x) {
        x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
        x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
        return x ^ (x >>> 31);
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]) * 2000;
        var records = new ArrayList<String>();
        var index = new HashMap<String, Long>();
        for (int i = 0; i < count; i++) {
            String name = Long.toHexString(mix(i) | Long.MIN_VALUE).repeat(1 + i % 20);
            records.add(name);
            index.merge(name.substring(0, 6), (long) i, Long::sum);
            if (i % 5 == 0) records.set((int) Math.floorMod(mix(i + 7), (long) records.size()), name + i);
        }
        records.sort(null);
        long digest = 0;
        for (String record : records) digest = mix(digest ^ record.hashCode());
        for (int round = 0; round < 4; round++) System.gc();
        long parallel = IntStream.range(0, records.size()).parallel().mapToLong(i -> mix(records.get(i).hashCode() + i)).sum();
        long sum = index.values().stream().mapToLong(Long::longValue).sum();
        System.out.println(records.size() + " " + index.size() + " " + Long.toHexString(digest) + " " + parallel + " " + sum);
    }
}
