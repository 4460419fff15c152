package powerkey_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// FuzzInputEvents holds for whatever a device reports: each press of a power key is heard once, and nothing else is.
func FuzzInputEvents(f *testing.F) {
	const size, most = 24, 100
	record := func(seconds, micros int64, kind, code uint16, value int32) []byte {
		var text bytes.Buffer
		for _, field := range []any{seconds, micros, kind, code, value} {
			if err := binary.Write(&text, binary.NativeEndian, field); err != nil {
				f.Fatal(err)
			}
		}
		return text.Bytes()
	}
	f.Add(append(record(1772366400, 0, 1, power, 1), record(0, -1, 1, power, 0)...))
	f.Add(append(record(-1<<63, 1<<62, 1, power2, 1), record(1<<62, -1<<63, 1, 30, 1)...))
	f.Fuzz(func(t *testing.T, events []byte) {
		events = events[:min(len(events), most*size)/size*size] // The kernel hands out whole ones.
		// The last one shows that all others have been read.
		events = append(events, record(time.Now().Unix(), 0, 1, power, 1)...)
		r := newRig(t)
		r.pressed = make(chan time.Time, most+1)
		device := r.device(t, "event0")
		if _, err := device.Write(events); err != nil {
			t.Fatal(err)
		}
		r.start(t)
		for e := events; len(e) > 0; e = e[size:] {
			kind, code, value := binary.NativeEndian.Uint16(e[16:]), binary.NativeEndian.Uint16(e[18:]), binary.NativeEndian.Uint32(e[20:])
			if kind != 1 || code != power && code != power2 || value != 1 {
				continue
			}
			next(t, r.pressed)
		}
		if len(r.pressed) > 0 {
			t.Fatalf("%d presses more than %x has", len(r.pressed), events)
		}
	})
}
