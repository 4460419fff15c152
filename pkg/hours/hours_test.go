package hours_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/hours"
)

func TestParse_AcceptsDaysTimesAndAZone(t *testing.T) {
	for text, want := range map[string]bool{
		"Sat-Sun 02:00-05:00 Europe/Berlin":    true,
		"Fri-Mon 22:00-02:00 America/New_York": true,
		"Wed 00:00-00:00 UTC":                  true,
		"":                                     false,
		"Sat-Sun 02:00-05:00":                  false,
		"Sat-Sun 02:00-05:00 Europe/Atlantis":  false,
		"Sat-Sun 02:00 Europe/Berlin":          false,
		"Sat-Sun 02:00-25:00 Europe/Berlin":    false,
		"Sat-Funday 02:00-05:00 UTC":           false,
		"Sat,Sun 02:00-05:00 UTC":              false,
		"Sat 02:00-05:00 UTC UTC":              false,
	} {
		if _, ok := hours.Parse(text); ok != want {
			t.Errorf("%q: accepted is %t", text, ok)
		}
	}
}

func TestLast_ReturnsTheHoursBeforeATime(t *testing.T) {
	const layout = "2006-01-02 15:04"
	at := func(text string) time.Time {
		if text == "" {
			return time.Time{}
		}
		found, err := time.Parse(layout, text)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	weekend := []string{"Sat-Sun 02:00-05:00 Europe/Berlin"}
	for name, c := range map[string]struct {
		hours            []string
		earliest, latest string
		from, to         string // in UTC; "" if there are none
	}{
		"the last of several days":           {weekend, "", "2026-06-17 12:00", "2026-06-14 00:00", "2026-06-14 03:00"},
		"the end is cut":                     {weekend, "", "2026-06-14 01:30", "2026-06-14 00:00", "2026-06-14 01:30"},
		"the start is cut":                   {weekend, "2026-06-14 01:00", "2026-06-14 12:00", "2026-06-14 01:00", "2026-06-14 03:00"},
		"those that begin then do not count": {weekend, "", "2026-06-14 00:00", "2026-06-13 00:00", "2026-06-13 03:00"},
		"none is late enough":                {weekend, "2026-06-15 00:00", "2026-06-17 12:00", "", ""},
		"a week ago":                         {[]string{"Wed 23:00-22:00 UTC"}, "", "2026-06-17 22:30", "2026-06-10 23:00", "2026-06-11 22:00"},
		"over midnight, into the next day":   {[]string{"Fri 22:00-02:00 UTC"}, "", "2026-06-13 01:00", "2026-06-12 22:00", "2026-06-13 01:00"},
		"days over the end of a week":        {[]string{"Sat-Mon 02:00-03:00 UTC"}, "", "2026-06-15 12:00", "2026-06-15 02:00", "2026-06-15 03:00"},
		"a whole day":                        {[]string{"Wed 00:00-00:00 UTC"}, "", "2026-06-18 12:00", "2026-06-17 00:00", "2026-06-18 00:00"},
		"the later of two":                   {[]string{"Mon 02:00-03:00 UTC", "Tue 02:00-03:00 UTC"}, "", "2026-06-17 12:00", "2026-06-16 02:00", "2026-06-16 03:00"},
		"clocks are set forward":             {weekend, "", "2026-03-29 12:00", "2026-03-29 01:00", "2026-03-29 03:00"},
		"the change skips the hours":         {[]string{"Sun 02:00-03:00 Europe/Berlin"}, "", "2026-03-29 12:00", "2026-03-22 01:00", "2026-03-22 02:00"},
		"it skips the last ones":             {[]string{"Sun 02:00-03:00 Europe/Berlin"}, "", "2026-03-31 12:00", "2026-03-22 01:00", "2026-03-22 02:00"},
		"clocks are set back":                {weekend, "", "2026-10-25 12:00", "2026-10-25 01:00", "2026-10-25 04:00"},
	} {
		t.Run(name, func(t *testing.T) {
			var all []hours.Hours
			for _, text := range c.hours {
				h, ok := hours.Parse(text)
				if !ok {
					t.Fatalf("%q is refused", text)
				}
				all = append(all, h)
			}
			from, to := hours.Last(all, at(c.earliest), at(c.latest))
			if !from.Equal(at(c.from)) || !to.Equal(at(c.to)) {
				t.Errorf("from %s to %s, want %s to %s", from.UTC().Format(layout), to.UTC().Format(layout), c.from, c.to)
			}
		})
	}
}
