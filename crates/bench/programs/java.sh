# needs: /usr/lib/jvm/java-17-openjdk-* /etc/java-17-openjdk
# Four threads that fill maps of their own and one that they share, and leave garbage behind.
prepare() {
    mkdir /tmp/java && cat >/tmp/java/Maps.java <<'END'
import java.util.*;
import java.util.concurrent.*;
public class Maps {
    public static void main(String[] words) throws Exception {
        long end = System.nanoTime() + Long.parseLong(words[0]) * 1_000_000_000L;
        Map<Integer, String> shared = new ConcurrentHashMap<>();
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> turns = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            int seed = t;
            turns.add(pool.submit(() -> {
                Random random = new Random(seed);
                long done = 0;
                while (System.nanoTime() < end) {
                    Map<Integer, String> own = new HashMap<>();
                    for (int i = 0; i < 1000; i++) {
                        int key = random.nextInt(50_000);
                        own.merge(key, "x", String::concat);
                        if (i % 10 == 0) shared.merge(key, "y", (a, b) -> a.length() > 20 ? b : a + b);
                    }
                    done += own.size();
                }
                return done;
            }));
        }
        long all = 0;
        for (Future<Long> turn : turns) all += turn.get();
        pool.shutdown();
        System.out.println(all / Long.parseLong(words[0]));
    }
}
END
    "$(echo /usr/lib/jvm/java-17-openjdk-*)/bin/javac" -d /tmp/java /tmp/java/Maps.java
}
score() {
    under "$(echo /usr/lib/jvm/java-17-openjdk-*)/bin/java" -Xms128m -Xmx256m -XX:+UseParallelGC -cp /tmp/java Maps "$SECONDS_LONG"
}
