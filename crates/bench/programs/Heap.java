import java.util.HashMap;
import java.util.Random;
import java.util.TreeMap;

/** A tree map and a hash map under a garbage collector that moves objects: Heap COUNT. */
public class Heap {
    record Entry(long number, String name, int[] parts) {}

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        var source = new Random(6);
        var tree = new TreeMap<Long, Entry>();
        var table = new HashMap<String, Entry>();
        for (int i = 0; i < count; i++) {
            var entry = new Entry(source.nextLong(), "entry " + i, new int[] {i, i * 3, i * 7});
            tree.put(entry.number(), entry);
            if (i % 2 == 0) table.put(entry.name(), entry);
            // Every fourth is garbage soon.
            if (i % 4 == 3) tree.pollFirstEntry();
        }
        long digest = 0;
        for (int turn = 0; turn < count; turn++) {
            double skewed = Math.pow(source.nextDouble(), 8);
            var entry = table.get("entry " + (int) (count / 2 * skewed) * 2);
            digest = digest * 31 + entry.parts()[1];
            if (turn % 16 == 0) {
                table.put(entry.name(), new Entry(turn, entry.name(), new int[] {1, turn, 2}));
            }
        }
        for (var entry : tree.values()) digest = digest * 31 + entry.parts()[2];
        System.out.println(tree.size() + " " + table.size() + " " + digest);
    }
}
