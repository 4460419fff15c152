// Package record is nth's memory: what was announced for this machine, how far nth came with it, and in which boot.
//
// There is one file, record.json in the state directory. It is read once, by Open, and written whole by every Put,
// which returns only when the new content would survive a power cut: a temporary file beside it, fsync, rename, fsync
// of the directory. A step is recorded before it acts and after it ended, so that a crash, an upgrade or a reboot finds
// what was begun and never drains a node a second time. A reboot is known by the kernel's boot ID, not by arithmetic
// on clocks.
//
// Beside it, outbox.json holds the notices that somebody outside the cluster is still to get, and the names of those that
// need not be made again (Outbox). It is there only where such notices are made.
//
// Memory is never a reason not to act. A file that is torn, or that another program or a newer nth wrote, is set aside
// under another name and reported; a directory that cannot be written to is reported by every Put, while the entries
// live on in memory. The node itself carries the cordon's owner (pkg/drain), so a lost record does no harm there.
package record
