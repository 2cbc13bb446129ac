#![cfg_attr(fuzzing, no_main)]
surefoot_fuzz::target!(schemata);
