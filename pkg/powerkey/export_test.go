package powerkey

// KeySet is what a device has.
type KeySet struct{ Power, Others bool }

// ParseKeys reads what the kernel says of a device.
func ParseKeys(text string) KeySet {
	found := parseKeys(text)
	return KeySet{found.power, found.others}
}
