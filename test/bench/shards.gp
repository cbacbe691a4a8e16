# The plot of test/bench/shards, which sets: file, with a line for each number of
# databases; most, the greatest of those; rate, the pairs a second in every database
# when the load is steady; clients; rounds; machine.

height = 740.0
set terminal svg size 980,height font 'sans-serif,13' background '#ffffff' noenhanced
set encoding utf8
set border 3 lc rgb '#888888'
set grid ytics lc rgb '#dddddd' lt 1
set style data linespoints
set pointsize 0.6
do for [i = 1:20] { set linetype i pointtype 7 }
set logscale x 2
set xrange [0.9:most * 1.15]
set xtics nomirror scale 0
set ytics nomirror
y(pixels) = 1 - pixels / height
panel(p) = 58 + 220 * (p - 1)
set lmargin at screen 0.08
set rmargin at screen 0.76

set multiplot
set label 1 'Databases that share nothing, on one machine' at screen 0.012, y(20) font ',17'
set label 2 'By the number of databases; acquire + release; medians of ' . rounds . ' rounds' at screen 0.012, y(42) textcolor rgb '#444444'
set label 3 machine at screen 0.012, y(height - 12) textcolor rgb '#444444' font ',12'
do for [p = 1:3] {
	set tmargin at screen y(panel(p) + 26)
	set bmargin at screen y(panel(p) + 178)
	set key at screen 0.77, y(panel(p) + 26) left top Left reverse samplen 1.5 spacing 1.1 font ',12'
	if (p == 1) {
		set logscale y
		set yrange [*:*]
		set title 'Pairs per second, of all databases together; logarithmic scale' offset 0, -0.5
		plot file using 1:2:xticlabels(1) lw 2 lc rgb '#0072b2' title sprintf('full: %d clients', clients), \
			'' using 1:4 lw 2 lc rgb '#d55e00' title 'steady', \
			'' using 1:(rate * $1) with lines dt 2 lc rgb '#4d4d4d' title sprintf('%d a database', rate)
		unset label
		unset logscale y
	}
	set yrange [0:*]
	if (p == 2) {
		set title 'Processor time of the server a pair, µs' offset 0, -0.5
		plot file using 1:3:xticlabels(1) lw 2 lc rgb '#0072b2' title 'full'
	}
	if (p == 3) {
		set title 'Hand-over in lease_wait, in the first database, µs' offset 0, -0.5
		plot file using 1:5:xticlabels(1) lw 2 lc rgb '#d55e00' title 'steady'
	}
}
unset multiplot
