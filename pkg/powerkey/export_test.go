package powerkey

// KeySet is what a device has.
type KeySet struct{ Power, Others bool }

// ParseKeys reads what the kernel says of a device.
func ParseKeys(text string) KeySet {
	found := parseKeys(text)
	return KeySet{found.power, found.others}
}

// IsDown looks for the power key in what the kernel says of a device's keys.
var IsDown = isDown

// AnswerFor answers in the kernel's place whether the power key is down: a pipe cannot be asked.
func (k *Keys) AnswerFor(down func() bool) { k.memory.down = func(int) bool { return down() } }
