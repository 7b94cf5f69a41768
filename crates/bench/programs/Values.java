import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;

/** Keeps values for one who asks over a Unix socket in redis's inline commands: Values SOCKET. */
public class Values {
    private final HashMap<String, byte[]> kept = new HashMap<>();
    private final ByteArrayOutputStream answers = new ByteArrayOutputStream();

    public static void main(String[] arguments) throws IOException {
        var listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        listener.bind(UnixDomainSocketAddress.of(arguments[0]));
        new Values().serve(listener.accept());
    }

    private void serve(SocketChannel client) throws IOException {
        var received = ByteBuffer.allocate(1 << 16);
        while (client.read(received) >= 0) {
            received.flip();
            var text = StandardCharsets.ISO_8859_1.decode(received.duplicate()).toString();
            int begin = 0;
            for (int end; (end = text.indexOf("\r\n", begin)) >= 0; begin = end + 2) {
                answer(text.substring(begin, end).split(" "));
            }
            received.position(begin).compact();
            for (var sent = ByteBuffer.wrap(answers.toByteArray()); sent.hasRemaining(); ) {
                client.write(sent);
            }
            answers.reset();
        }
    }

    private void answer(String[] words) throws IOException {
        switch (words[0]) {
            case "SHUTDOWN" -> System.exit(0);
            case "SET" -> {
                kept.put(words[1], words[2].getBytes(StandardCharsets.ISO_8859_1));
                answers.write("+OK\r\n".getBytes());
            }
            default -> {
                byte[] found = kept.get(words[1]);
                answers.write(("$" + found.length + "\r\n").getBytes());
                answers.write(found);
                answers.write("\r\n".getBytes());
            }
        }
    }
}
