# The plot of test/bench/soak, which sets: file, with a line a minute and a column a
# figure; minutes; seconds, which one of them has; warm_up; sessions; backends, their
# columns; machine; rate, cpu and memory, the slopes.

height = 960.0
set terminal svg size 980,height font 'sans-serif,13' background '#ffffff' noenhanced
set encoding utf8
set border 3 lc rgb '#888888'
set grid ytics lc rgb '#dddddd' lt 1
set xtics 1 scale 0 nomirror
set ytics nomirror
set xrange [0.5:minutes + 0.5]
set style data linespoints
set datafile separator tab
set pointsize 0.4
do for [i = 1:20] { set linetype i pointtype 7 }
unset key

y(pixels) = 1 - pixels / height
set lmargin at screen 0.08
set rmargin at screen 0.78

blue = '#0072b2'; sky = '#56b4e9'; green = '#009e73'; orange = '#d55e00'; yellow = '#e69f00'; pink = '#cc79a7'; grey = '#4d4d4d'; light = '#c4c4c4'
panel(p) = 58 + 220 * (p - 1)

set multiplot
set label 1 sprintf('%d sessions at work: is every line flat?', sessions) at screen 0.012, y(20) font ',17'
set label 2 sprintf('By minutes of %d s; slopes are those after minute %d.', seconds, warm_up) at screen 0.012, y(42) textcolor rgb '#444444'
set label 3 machine at screen 0.012, y(height - 12) textcolor rgb '#444444' font ',12'

do for [p = 1:4] {
	set tmargin at screen y(panel(p) + 26)
	set bmargin at screen y(panel(p) + 178)
	set yrange [0:*]
	set key at screen 0.79, y(panel(p) + 26) left top Left reverse samplen 1.5 spacing 1.05 font ',12'
	if (p == 1) {
		set title 'Calls per second: ' . rate offset 0, -0.5
		plot file using 'minute':'calls per s' lw 2 lc rgb grey title 'all', \
			'' using 'minute':'calls per s, tickets' lc rgb blue title 'tickets', \
			'' using 'minute':'calls per s, named' lc rgb sky title 'named locks', \
			'' using 'minute':'calls per s, fenced' lc rgb orange title 'fenced writes', \
			'' using 'minute':'calls per s, polling' lc rgb green title 'polling waiters', \
			'' using 'minute':'calls per s, waiting' lc rgb yellow title 'waiters in a call'
		unset label
	}
	if (p == 2) {
		set title 'Processor time of a call, µs: ' . cpu offset 0, -0.5
		plot file using 'minute':'us of CPU a call' lw 2 lc rgb grey title 'all'
	}
	if (p == 3) {
		set title 'Memory of every backend, kB: ' . memory offset 0, -0.5
		plot for [i = 1:words(backends)] file using 'minute':(column(int(word(backends, i)))) with lines lc rgb light notitle, \
			'' using 'minute':'kB a backend, tickets' lc rgb blue title 'tickets, mean', \
			'' using 'minute':'kB a backend, named' lc rgb sky title 'named locks', \
			'' using 'minute':'kB a backend, fenced' lc rgb orange title 'fenced writes', \
			'' using 'minute':'kB a backend, polling' lc rgb green title 'polling waiters', \
			'' using 'minute':'kB a backend, waiting' lc rgb yellow title 'waiters in a call', \
			'' using 'minute':'kB a backend, idle' lc rgb grey title 'idle', \
			'' using 'minute':'kB a backend, prune' lc rgb pink title 'lease_prune'
	}
	if (p == 4) {
		set title 'Tables and indexes, kB' offset 0, -0.5
		plot file using 'minute':'kB of table tickets' lc rgb blue title 'tickets', \
			'' using 'minute':'kB of indexes of tickets' lc rgb sky title 'their indexes', \
			'' using 'minute':'kB of table locks' lc rgb orange title 'locks', \
			'' using 'minute':'kB of indexes of locks' lc rgb yellow title 'their index', \
			'' using 'minute':'kB of table events' lc rgb green title 'events', \
			'' using 'minute':'kB of indexes of events' lc rgb pink title 'their indexes'
	}
}
unset multiplot
