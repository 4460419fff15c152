// Package hours has the hours of a week in which maintenance may begin. A newcomer starts at Hours.
package hours

import (
	"slices"
	"strings"
	"time"
)

// Hours are the same hours on some days of each week, such as "Sat-Sun 02:00-05:00 Europe/Berlin".
type Hours struct {
	days     [7]bool // by time.Weekday: those on which the hours begin
	from, to int     // in minutes since midnight; to may be on the next day
	zone     *time.Location
}

const midnight = 24 * 60

// Parse reads a day or a range of days, a range of times, and the IANA name of a time zone. Hours whose end is not after their start end on the next
// day. ok is false if text is something else.
func Parse(text string) (h Hours, ok bool) {
	words := strings.Fields(text)
	if len(words) != 3 {
		return Hours{}, false
	}
	first, last, isRange := strings.Cut(words[0], "-")
	if !isRange {
		last = first
	}
	begin, end, _ := strings.Cut(words[1], "-")
	day, firstOK := weekday(first)
	lastDay, lastOK := weekday(last)
	from, fromErr := time.Parse("15:04", begin)
	to, toErr := time.Parse("15:04", end)
	zone, zoneErr := time.LoadLocation(words[2])
	if !firstOK || !lastOK || fromErr != nil || toErr != nil || zoneErr != nil {
		return Hours{}, false
	}
	h = Hours{from: from.Hour()*60 + from.Minute(), to: to.Hour()*60 + to.Minute(), zone: zone}
	if h.to <= h.from {
		h.to += midnight
	}
	for ; day != lastDay; day = (day + 1) % 7 {
		h.days[day] = true
	}
	h.days[lastDay] = true
	return h, true
}

// weekday returns the day of the week with that name: its first three letters.
func weekday(name string) (day time.Weekday, ok bool) {
	for day = time.Sunday; day <= time.Saturday; day++ {
		if day.String()[:3] == name {
			return day, true
		}
	}
	return 0, false
}

// Last returns the part between earliest and latest of the hours that begin last in that time. from and to are zero if no hours are in it. A zero
// earliest is no limit.
func Last(all []Hours, earliest, latest time.Time) (from, to time.Time) {
	for _, h := range all {
		if f, t := h.last(earliest, latest); f.After(from) || f.Equal(from) && t.After(to) {
			from, to = f, t
		}
	}
	return from, to
}

// last is Last for one range of hours. On a day when the clocks change, hours may be shorter, longer or an hour later, or are left out.
func (h Hours) last(earliest, latest time.Time) (from, to time.Time) {
	year, month, day := latest.In(h.zone).Date()
	for back := range 15 { // Today's hours may begin after latest, and a change of the clocks may skip last week's. Two weeks have some.
		at := func(minute int) time.Time { return time.Date(year, month, day-back, 0, minute, 0, 0, h.zone) }
		if !h.days[at(midnight/2).Weekday()] { // Noon exists on each day, wherever the clocks change.
			continue
		}
		from = slices.MaxFunc([]time.Time{at(h.from), earliest}, time.Time.Compare)
		to = slices.MinFunc([]time.Time{at(h.to), latest}, time.Time.Compare)
		if from.Before(to) {
			return from, to
		}
	}
	return time.Time{}, time.Time{}
}
