# Strings, hashes and a sort: hash.pl MIB
use strict;
use warnings;
use Digest::SHA;
my $count = $ARGV[0] * 2500;
my ($state, %seen, @lines) = (1);
for my $i (1 .. $count) {
    $state = ($state * 1103515245 + 12345) % 2147483648;
    my $line = sprintf("%010d line %d ", $state, $i) x (1 + $i % 7);
    push @lines, $line;
    $seen{substr($line, 0, 6)} .= chr(65 + $i % 26);
    delete $seen{substr($lines[$state % @lines], 0, 6)} if $i % 11 == 0;
}
my $digest = Digest::SHA->new(256);
$digest->add($_) for sort @lines;
$digest->add("$_=$seen{$_};") for sort keys %seen;
print scalar(@lines), " ", scalar(keys %seen), " ", $digest->hexdigest, "\n";
