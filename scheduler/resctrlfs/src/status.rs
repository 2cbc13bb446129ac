//! `info/last_cmd_status`: a log of 512 bytes that some commands clear.

const ROOM_BYTES: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Status {
    text: Vec<u8>,
    full: bool,
}

impl Status {
    pub fn clear(&mut self) {
        self.text.clear();
        self.full = false;
    }

    /// Text that does not fit is lost, and so is all that comes after it.
    pub fn add(&mut self, text: &[u8]) {
        self.full |= self.text.len() + text.len() + 1 > ROOM_BYTES;
        if !self.full {
            self.text.extend(text);
        }
    }

    pub fn show(&self) -> Vec<u8> {
        if self.text.is_empty() {
            b"ok\n".to_vec()
        } else {
            self.text.clone()
        }
    }
}
