// Threads that add to arrays of their own. Sum.class is this, by javac --release 11.
public class Sum {
    public static void main(String[] arguments) throws Exception {
        long[][] parts = new long[4][1 << 16];
        Thread[] threads = new Thread[4];
        for (int number = 0; number < 4; number++) {
            long[] part = parts[number];
            threads[number] = new Thread(() -> {
                for (int round = 0; round < 10; round++)
                    for (int at = 0; at < part.length; at++)
                        part[at] += at;
            });
            threads[number].start();
        }
        long sum = 0;
        for (int number = 0; number < 4; number++) {
            threads[number].join();
            for (long value : parts[number])
                sum += value;
        }
        System.out.println("sum " + sum);
    }
}
