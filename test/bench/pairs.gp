# The plot of test/bench/pairs.  That script sets the variables: folder; settings;
# cases (those with the setting "on"); others (those with the other settings);
# clients; rounds; machine; versions.

n = words(cases)
rows = (n + 3) / 4
height = 130.0 + 20 * rows + 250 * words(settings)
set terminal svg size 980,height font 'sans-serif,13' background '#ffffff' noenhanced
set encoding utf8

colour(case) = case eq 'tickets' ? '#0072b2' : case eq 'named' ? '#56b4e9' : \
	case eq 'tickets-grants' ? '#4d7f9e' : case eq 'tickets-all' ? '#8fb4c9' : \
	case eq 'tickets-next' ? '#003c5f' : case eq 'named-next' ? '#a6d8f5' : \
	case eq 'updates' ? '#4d4d4d' : case eq 'updates-roomy' ? '#808080' : case eq 'advisory' ? '#c4c4c4' : \
	case eq 'shedlock' ? '#009e73' : case eq 'hand-tickets' ? '#d55e00' : case eq 'hand-named' ? '#e69f00' : \
	case eq 'redis-always' ? '#882255' : case eq 'redis-everysec' ? '#cc79a7' : case eq 'redis-next' ? '#661100' : '#ddcc77'
title_of(case) = case eq 'tickets' ? 'leaselock: tickets' : case eq 'named' ? 'leaselock: named locks' : \
	case eq 'tickets-grants' ? 'leaselock: tickets, events' : case eq 'tickets-all' ? 'leaselock: tickets, all events' : \
	case eq 'tickets-next' ? 'leaselock: tickets, next' : case eq 'named-next' ? 'leaselock: named locks, next' : \
	case eq 'updates' ? 'two UPDATEs' : case eq 'updates-roomy' ? 'two UPDATEs, pages with room' : \
	case eq 'advisory' ? 'pg_advisory_lock' : case eq 'shedlock' ? 'ShedLock''s statements' : \
	case eq 'hand-tickets' ? 'PL/pgSQL: tickets' : case eq 'hand-named' ? 'PL/pgSQL: named locks' : \
	case eq 'redis-always' ? 'Redis, appendfsync always' : case eq 'redis-everysec' ? 'Redis, everysec' : \
	case eq 'redis-next' ? 'Redis, appendfsync always, next' : case
heading(setting) = setting eq 'on' ? 'synchronous_commit = on: every commit waits for the disk' : \
	setting eq 'off' ? 'synchronous_commit = off: only leaselock''s grants wait for the disk' : \
	'fsync = off: nothing waits for the disk, only processor time is left'
short(v) = v < 9950 ? sprintf('%.1f', v / 1000) : sprintf('%.0f', v / 1000)

y(pixels) = 1 - pixels / height
top(p) = 78 + 20 * rows + 250 * (p - 1)

set style fill solid 1.0 noborder
set boxwidth 0.86
set logscale y
stats '< cat ' . folder . '/*.panel' using 3 nooutput
low = STATS_min / 1.5
stats '< cat ' . folder . '/*.panel' using 4 nooutput
set yrange [low:STATS_max * 2]
set ytics ('10' 10, '100' 100, '1 000' 1000, '10 000' 10000, '100 000' 100000, '1 000 000' 1000000) nomirror
set grid ytics lc rgb '#dddddd' lt 1
set border 3 lc rgb '#888888'
set xtics scale 0 nomirror
set lmargin at screen 0.07
set rmargin at screen 0.985
unset key

set multiplot
set label 1 'Acquire + release, pairs per second' at screen 0.012, y(20) font ',17'
set label 2 'Median of ' . rounds . ' rounds, in thousands; whiskers: least and greatest; logarithmic scale. Next: one lock released and another acquired at once.' \
	at screen 0.012, y(42) textcolor rgb '#444444'
set label 3 machine at screen 0.012, y(height - 30) textcolor rgb '#444444' font ',12'
set label 4 versions at screen 0.012, y(height - 13) textcolor rgb '#444444' font ',12'
do for [i = 1:n] {
	left = 0.014 + 0.246 * ((i - 1) / rows)
	down = 66 + 20 * ((i - 1) % rows)
	set object i rectangle from screen left, y(down + 6) to screen left + 0.014, y(down - 6) \
		fillcolor rgb colour(word(cases, i)) fillstyle solid noborder
	set label 10 + i title_of(word(cases, i)) at screen left + 0.02, y(down) font ',12'
}
do for [p = 1:words(settings)] {
	file = folder . '/' . word(settings, p) . '.panel'
	set tmargin at screen y(top(p) + 22)
	set bmargin at screen y(top(p) + 202)
	bars = word(settings, p) eq 'on' ? n : words(others)
	set xrange [-1:words(clients) * (bars + 2) - 2]
	set xtics ()
	do for [i = 1:words(clients)] {
		set xtics add (word(clients, i) . (word(clients, i) eq '1' ? ' client' : ' clients') (i - 1) * (bars + 2) + (bars - 1) / 2.0)
	}
	set title heading(word(settings, p)) offset 0, -0.4
	plot for [i = 1:bars] file index i - 1 using 1:2 with boxes lc rgb colour(word(cases, i)), \
		for [i = 1:bars] file index i - 1 using 1:3:(0):($4 - $3) with vectors nohead lw 1.5 lc rgb '#000000', \
		for [i = 1:bars] file index i - 1 using 1:4:(short($2)) with labels font ',9' offset 0, 0.5
	unset label
	unset object
}
unset multiplot
