# Sends latency of LC services to the daemon's socket: feed.pl SOCKET FILE [once]
# FILE holds "SERVICE MS" lines, read at every round; 200 answers of that time each. The histogram is HdrHistogram V2
# (docs/latency-feed.md), written out here so that nothing but perl is needed. With "once" the exit status says whether it was taken.
use strict;
use warnings;
use Socket;

my ($path, $file, $once) = @ARGV;
my ($answers, $digits) = (200, 3);

sub zigzag_leb128 {
    my ($v) = @_;
    my $n = $v < 0 ? -2 * $v - 1 : 2 * $v;
    my $out = "";
    do { my $b = $n & 0x7f; $n >>= 7; $out .= chr($n ? $b | 0x80 : $b); } while ($n);
    return $out;
}

sub histogram {
    my ($ns) = @_;
    # Buckets of 2048 values, each but the first of its upper half.
    my $bits = length(sprintf "%b", $ns);
    my $bucket = $bits > 11 ? $bits - 11 : 0;
    my $index = ($bucket + 1) * 1024 + ($ns >> $bucket) - 1024;
    my $counts = zigzag_leb128(-$index) . zigzag_leb128($answers);
    my $raw = pack("N N N N Q> Q> d>", 0x1c849313, length $counts, 0, $digits, 1, 3600 * 10**9, 1.0) . $counts;
    my $text = pack("u", $raw);
    $text =~ s/^.//mg;
    $text =~ s/\n//g;
    $text =~ tr#` -_#AA-Za-z0-9+/#;
    # uuencode fills up with zeros where base64 writes "=".
    my $fill = (3 - length($raw) % 3) % 3;
    substr($text, -$fill) = "=" x $fill if $fill;
    return $text;
}

socket(my $to, PF_UNIX, SOCK_DGRAM, 0) or die "socket: $!";
while (1) {
    open(my $f, "<", $file) or die "$file: $!";
    while (<$f>) {
        my ($service, $ms) = split;
        my $h = histogram($ms * 1_000_000);
        my $sent = send($to, qq({"service":"$service","window_ms":500,"count":$answers,"unit":"ns","histogram":"$h"}), 0, sockaddr_un($path));
        # Between a kill and the next start nobody listens.
        die "$path: $!\n" if $once && !$sent;
    }
    last if $once;
    select(undef, undef, undef, 0.5);
}
