package s3

// SetPage makes pages of listings smaller.
func (d *Dest) SetPage(keys int32) { d.page = keys }
