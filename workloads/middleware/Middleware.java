import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Java middleware: a supermarket company's back end, after SPECjbb's subject but none of its code.
 *
 * <pre>
 *   java Middleware --port P --threads N
 *   java Middleware --verify
 * </pre>
 *
 * Request key K is a customer at a till: scan 20 to 60 products, price them with offers (BigDecimal), write and read back the receipt as
 * JSON, book it to stock and loyalty accounts, and for every tenth report a shop's best sellers. It allocates about a megabyte a request,
 * so that garbage collection takes part in the tail as it does in SPECjbb. Threads: N workers; the JDK's HTTP server has one more
 * that hands connections to them, and the collector has its own (set with -XX:ParallelGCThreads).
 */
public final class Middleware {
    private static final int PRODUCTS = 20_000;
    private static final int SHOPS = 50;
    private static final int CUSTOMERS = 100_000;
    private static final int KEPT_RECEIPTS = 20_000;
    private static final int PASSES = 8;
    private static final Pattern NUMBER = Pattern.compile("\"total\":\"([0-9.]+)\"");

    private record Product(int id, String name, BigDecimal price, int group) {}

    private record Line(Product product, int quantity, BigDecimal amount) {}

    private record Receipt(long number, int shop, int customer, List<Line> lines, BigDecimal total) {}

    private final List<Product> products = new ArrayList<>();
    private final List<ConcurrentHashMap<Integer, LongAdder>> sold = new ArrayList<>();
    private final ConcurrentHashMap<Integer, BigDecimal> points = new ConcurrentHashMap<>();
    private final ConcurrentSkipListMap<Long, Receipt> receipts = new ConcurrentSkipListMap<>();
    private final AtomicLong next = new AtomicLong();
    private final LongAdder soldUnits = new LongAdder();

    Middleware() {
        SplittableRandom random = new SplittableRandom(71);
        for (int i = 0; i < PRODUCTS; i++) {
            BigDecimal price = BigDecimal.valueOf(random.nextInt(50, 10_000), 2);
            products.add(new Product(i, "product " + Long.toString(random.nextLong() >>> 20, 36), price, random.nextInt(40)));
        }
        for (int i = 0; i < SHOPS; i++) {
            sold.add(new ConcurrentHashMap<>());
        }
    }

    /** Every third unit of a product group is half price; who buys for more than 100 gets 5 %. */
    private static List<Line> price(Map<Product, Integer> basket) {
        List<Line> lines = new ArrayList<>();
        TreeMap<Integer, Integer> seen = new TreeMap<>();
        for (Map.Entry<Product, Integer> e : basket.entrySet()) {
            Product p = e.getKey();
            BigDecimal amount = BigDecimal.ZERO;
            for (int i = 0; i < e.getValue(); i++) {
                boolean half = seen.merge(p.group(), 1, Integer::sum) % 3 == 0;
                amount = amount.add(half ? p.price().divide(BigDecimal.valueOf(2), 2, RoundingMode.HALF_EVEN) : p.price());
            }
            lines.add(new Line(p, e.getValue(), amount));
        }
        return lines;
    }

    private static BigDecimal total(List<Line> lines) {
        BigDecimal sum = lines.stream().map(Line::amount).reduce(BigDecimal.ZERO, BigDecimal::add);
        if (sum.compareTo(BigDecimal.valueOf(100)) > 0) {
            sum = sum.multiply(new BigDecimal("0.95"));
        }
        return sum.setScale(2, RoundingMode.HALF_EVEN);
    }

    private static String json(Receipt r) {
        StringBuilder out = new StringBuilder("{\"number\":").append(r.number()).append(",\"shop\":").append(r.shop()).append(",\"lines\":[");
        String comma = "";
        for (Line l : r.lines()) {
            out.append(comma).append("{\"id\":").append(l.product().id()).append(",\"name\":\"").append(l.product().name())
                .append("\",\"quantity\":").append(l.quantity()).append(",\"amount\":\"").append(l.amount()).append("\"}");
            comma = ",";
        }
        return out.append("],\"total\":\"").append(r.total()).append("\"}").toString();
    }

    private Map<Product, Integer> basket(SplittableRandom random) {
        Map<Product, Integer> basket = new LinkedHashMap<>();
        for (int i = random.nextInt(20, 61); i > 0; i--) {
            // The product of two uniform numbers: the first products sell best.
            int which = (int) (random.nextDouble() * random.nextDouble() * PRODUCTS);
            basket.merge(products.get(which), random.nextInt(1, 4), Integer::sum);
        }
        return basket;
    }

    String answer(long key) {
        SplittableRandom random = new SplittableRandom(key);
        int shop = random.nextInt(SHOPS);
        int customer = random.nextInt(CUSTOMERS);
        Map<Product, Integer> basket = basket(random);
        Receipt receipt = null;
        String text = "";
        // A till shows the running total: the basket is priced again as it fills.
        for (int pass = 1; pass <= PASSES; pass++) {
            Map<Product, Integer> part = new LinkedHashMap<>();
            basket.entrySet().stream().limit((long) basket.size() * pass / PASSES).forEach(e -> part.put(e.getKey(), e.getValue()));
            List<Line> lines = price(part);
            receipt = new Receipt(key, shop, customer, lines, total(lines));
            text = json(receipt);
        }
        Matcher found = NUMBER.matcher(text);
        if (!found.find() || new BigDecimal(found.group(1)).compareTo(receipt.total()) != 0) {
            throw new IllegalStateException("the receipt does not say its total");
        }
        book(receipt);
        return key % 10 == 0 ? text + "\n" + report(shop) : text + "\n";
    }

    private void book(Receipt r) {
        ConcurrentHashMap<Integer, LongAdder> here = sold.get(r.shop());
        for (Line l : r.lines()) {
            here.computeIfAbsent(l.product().id(), id -> new LongAdder()).add(l.quantity());
            soldUnits.add(l.quantity());
        }
        points.merge(r.customer(), r.total(), BigDecimal::add);
        long number = next.getAndIncrement();
        receipts.put(number, r);
        receipts.remove(number - KEPT_RECEIPTS);
    }

    private String report(int shop) {
        StringBuilder out = new StringBuilder();
        sold.get(shop).entrySet().stream()
            .map(e -> Map.entry(e.getKey(), e.getValue().sum()))
            .sorted(Map.Entry.<Integer, Long>comparingByValue().reversed().thenComparing(Map.Entry.comparingByKey()))
            .limit(10)
            .forEach(e -> out.append(products.get(e.getKey()).name()).append(' ').append(e.getValue()).append('\n'));
        return out.toString();
    }

    private void handle(HttpExchange exchange) throws IOException {
        int status = 200;
        String text;
        try {
            String query = exchange.getRequestURI().getQuery();
            text = answer(Long.parseLong(query.substring(query.indexOf("q=") + 2)));
        } catch (NumberFormatException | NullPointerException e) {
            status = 400;
            text = "give GET /?q=NUMBER\n";
        }
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, body.length);
        try (OutputStream out = exchange.getResponseBody()) {
            out.write(body);
        }
    }

    private static void must(boolean holds, String what) {
        if (!holds) {
            System.err.println("verify: FAILED: " + what);
            System.exit(1);
        }
    }

    private static void verify() throws InterruptedException {
        // By hand: 3 units of one group at 2.00, 2.00, 1.00 (the third is half price) and one of another group at 99.00; 104 x 0.95.
        Map<Product, Integer> basket = new LinkedHashMap<>();
        basket.put(new Product(1, "a", new BigDecimal("2.00"), 1), 3);
        basket.put(new Product(2, "b", new BigDecimal("99.00"), 2), 1);
        must(total(price(basket)).equals(new BigDecimal("98.80")), "a basket of 104.00 costs 98.80");
        Middleware shop = new Middleware();
        must(shop.answer(5).equals(new Middleware().answer(5)), "a receipt is a function of the request");
        int threads = 4;
        CountDownLatch done = new CountDownLatch(threads);
        for (int t = 0; t < threads; t++) {
            long from = t * 1000L;
            new Thread(() -> {
                for (long key = from; key < from + 1000; key++) {
                    shop.answer(key);
                }
                done.countDown();
            }).start();
        }
        done.await();
        long units = shop.sold.stream().flatMap(s -> s.values().stream()).mapToLong(LongAdder::sum).sum();
        must(units == shop.soldUnits.sum() && units > 4000L * 20, "no unit that was sold is lost");
        must(shop.receipts.size() == 4001, "no receipt is lost");
        BigDecimal receipts = shop.receipts.values().stream().map(Receipt::total).reduce(BigDecimal.ZERO, BigDecimal::add);
        BigDecimal points = shop.points.values().stream().reduce(BigDecimal.ZERO, BigDecimal::add);
        must(receipts.equals(points), "loyalty accounts have what was paid");
        System.out.println("verify: ok");
    }

    private static int number(Map<String, String> options, String name, int otherwise, int lo, int hi) {
        String text = options.getOrDefault(name, Integer.toString(otherwise));
        try {
            int v = Integer.parseInt(text);
            if (v >= lo && v <= hi) {
                return v;
            }
        } catch (NumberFormatException e) {
            // Said below, with the range.
        }
        System.err.println(name + " \"" + text + "\" is not a whole number from " + lo + " to " + hi);
        System.exit(2);
        return 0;
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 1 && args[0].equals("--verify")) {
            verify();
            return;
        }
        Map<String, String> options = new LinkedHashMap<>();
        for (int i = 0; i + 1 < args.length; i += 2) {
            options.put(args[i], args[i + 1]);
        }
        if (args.length % 2 != 0 || options.keySet().stream().anyMatch(o -> !o.equals("--port") && !o.equals("--threads"))) {
            System.err.println("usage: Middleware --port P --threads N | --verify");
            System.exit(2);
        }
        int port = number(options, "--port", 8080, 1024, 65535);
        int threads = number(options, "--threads", 1, 1, 1024);
        Middleware shop = new Middleware();
        // Compiled before the port opens: the first seconds of a JVM are those of its compiler.
        for (long key = 0; key < 3000; key++) {
            shop.answer(key);
        }
        ExecutorService workers = Executors.newFixedThreadPool(threads);
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port), 4096);
        server.setExecutor(workers);
        server.createContext("/", shop::handle);
        server.start();
        System.err.println("ready on 127.0.0.1:" + port + " with " + threads + " threads");
    }
}
